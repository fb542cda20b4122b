"""The verbs run and report: experiments, and what their records say."""

import argparse
from pathlib import Path
from typing import TypeAlias

from .experiment import RunOptions, run_experiment
from .report import ReportOptions, report
from .settings import add_flags, build, given_settings

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_run_and_report(verbs: Verbs) -> None:
    _add_run(verbs)
    _add_report(verbs)


def _add_run(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "run",
        help="run an experiment: what has no record yet",
        description="Run an experiment's file at a scale. Every run leaves one JSON record; runs that "
        "have one are left out, interrupted ones go on where they stopped.",
        allow_abbrev=False,
    )
    verb.add_argument("experiment", type=Path, metavar="FILE", help="as in experiments/overlap.py")
    add_flags(verb, RunOptions)
    verb.set_defaults(run=_run, asked=run_options, verb=verb)


def _run(parsed: argparse.Namespace) -> None:
    run_experiment(parsed.experiment, run_options(parsed))


def run_options(parsed: argparse.Namespace) -> RunOptions:
    return build(RunOptions, given_settings(RunOptions, parsed))


def _add_report(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "report",
        help="one page of what the records of experiments say",
        description="Read records and write one HTML page and its tables in Markdown: claims with "
        "verdicts, tables with intervals, figures, costs, threats to validity, and where every number "
        "comes from.",
        allow_abbrev=False,
    )
    add_flags(verb, ReportOptions)
    verb.set_defaults(run=_report, verb=verb)


def _report(parsed: argparse.Namespace) -> None:
    report(build(ReportOptions, given_settings(ReportOptions, parsed)))
