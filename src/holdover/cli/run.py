"""The verbs run and report: experiments, and what their records say."""

import argparse
from pathlib import Path
from typing import TypeAlias

from ..experiments.options import ReportOptions, RunOptions
from ..experiments.report.write import report
from ..experiments.runner import run_experiments
from ..runs.settings import add_flags, build, given_settings

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_run_and_report(verbs: Verbs) -> None:
    _add_run(verbs)
    _add_report(verbs)


def _add_run(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "run",
        help="run experiments: what has no record yet",
        description="Run experiments' files at a scale. Every run leaves one JSON record; runs that "
        "have one are left out, interrupted ones go on where they stopped. Those of several files share "
        "what --together allows.",
        allow_abbrev=False,
    )
    verb.add_argument(
        "experiment",
        type=Path,
        metavar="FILE",
        help="as in experiments/overlap.py; more may follow",
    )
    add_flags(verb, RunOptions)
    verb.set_defaults(run=_run, asked=_asked, verb=verb)


def _run(parsed: argparse.Namespace) -> None:
    more = _more_files(parsed)
    run_experiments([parsed.experiment, *more], _options(parsed))


def _asked(parsed: argparse.Namespace) -> RunOptions:
    """What is asked of a scheduler."""
    if _more_files(parsed):
        raise ValueError("Jobs are runs of one experiment: submit each experiment by itself.")
    return _options(parsed)


def _options(parsed: argparse.Namespace) -> RunOptions:
    return build(RunOptions, given_settings(RunOptions, parsed))


def _more_files(parsed: argparse.Namespace) -> list[Path]:
    """Those behind the first, which argparse takes for settings: they are taken from among them."""
    files = [word for word in parsed.overrides if word.endswith(".py") and "=" not in word]
    parsed.overrides = [word for word in parsed.overrides if word not in files]
    return [Path(file) for file in files]


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
