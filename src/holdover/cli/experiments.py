"""The verbs run and report: run experiments, and report on their records."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .verb import OptionsVerb, Parser, named


@dataclass(frozen=True, kw_only=True)
class RunVerb(OptionsVerb):
    """Takes files of experiments in addition to its options."""

    def add_flags(self, parser: Parser) -> None:
        parser.add_argument(
            "experiment",
            type=Path,
            metavar="FILE",
            help="as in experiments/overlap.py; more may follow",
        )
        super().add_flags(parser)

    def parse(self, words: Any) -> argparse.Namespace:
        parsed = super().parse(words)
        # argparse takes further files for KEY=VALUE words.
        more = [word for word in parsed.overrides if word.endswith(".py") and "=" not in word]
        parsed.overrides = [word for word in parsed.overrides if word not in more]
        parsed.experiments = [parsed.experiment, *map(Path, more)]
        return parsed

    def settings(self, parsed: argparse.Namespace) -> Any:
        if len(parsed.experiments) > 1:
            raise ValueError("Jobs are runs of one experiment: submit each experiment separately.")
        return super().settings(parsed)

    def carry_out(self, parsed: argparse.Namespace) -> Any:
        return named(self.run)(parsed.experiments, super().settings(parsed))


VERBS = (
    RunVerb(
        name="run",
        help="run the experiments that have no record yet",
        description="Run experiment files at a scale. Every run leaves one JSON record. Runs that have "
        "a record are skipped; interrupted ones continue. Runs of several files share the number of "
        "processes that --together allows.",
        options="experiments.options:RunOptions",
        run="experiments.runner:run_experiments",
    ),
    OptionsVerb(
        name="report",
        help="write one page with the results of experiments",
        description="Read records and write one HTML page and its tables in Markdown: claims with "
        "verdicts, tables with intervals, figures, costs, threats to validity, and the source of every "
        "number.",
        options="experiments.options:ReportOptions",
        run="experiments.report.write:report",
    ),
)
