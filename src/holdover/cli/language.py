"""The verbs of language modelling: train, eval, compare, plot, demo."""

import argparse
from pathlib import Path
from typing import Any

from .verb import OptionsVerb, Parser, TrainingVerb, Verb

VERBS = (
    TrainingVerb(
        name="train",
        help="train a language model with a carried state, or its plain twin",
        description="Train a language model window by window. With --recurrence none the same tokens in "
        "the same order train the plain twin.",
        options="language.options:TrainOptions",
        run="language.training:train",
        defaults="cli.language:recurrence_of_model",
        given_as="language.options:for_plain_twin",
    ),
    OptionsVerb(
        name="eval",
        help="perplexity, accuracy, cost, and whether the state is used",
        description="Score a text with a model at one or more overlaps: one table, one JSON record, "
        "plots.",
        options="language.eval_options:EvalOptions",
        run="language.evaluation:evaluate",
        several_processes=True,
    ),
    Verb(
        name="compare",
        help="compare evaluations on the same text, with paired intervals",
        description="Show how much each evaluation's loss exceeds that of the first. The intervals come "
        "from drawing the same documents (or blocks of windows) for all.",
        arguments="cli.language:add_compare_flags",
        run="cli.language:compare",
    ),
    Verb(
        name="plot",
        help="plot training curves of several runs, or several evaluations side by side",
        description="Plot runs (training and validation loss) and evaluations (perplexity against "
        "FLOPs, loss by position, use of the state), as PNG and SVG.",
        arguments="cli.language:add_plot_flags",
        run="cli.language:plot",
    ),
    OptionsVerb(
        name="demo",
        help="show what a carried state does, with the bundled models and novel",
        description="Two small pretrained twins, one with a memory, read a novel: perplexity and cost, "
        "whether the state is used, writing past the last position, a minute of training, and a page "
        "with the results. Takes about three minutes on two cores; --stages and --novel-tokens make it "
        "shorter.",
        options="demo.options:DemoOptions",
        run="demo.run:run",
    ),
)


def recurrence_of_model(given: dict[str, Any]) -> dict[str, Any]:
    """Settings of the model's own recurrence, which it keeps unless others are given."""
    from ..runs.models import recurrence_of

    own = recurrence_of(given.get("model", ""))
    return {"recurrence": own} if own and (own["carry"] != "none" or own.get("rsa")) else {}


def add_compare_flags(parser: Parser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="folder of an evaluation, or its record"
    )


def compare(parsed: argparse.Namespace) -> None:
    from ..language import plotting

    plotting.compare(parsed.paths)


def add_plot_flags(parser: Parser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="folder of a run or of an evaluation"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/plots"),
        metavar="DIR",
        help="folder for the plots (default: runs/plots)",
    )


def plot(parsed: argparse.Namespace) -> None:
    from ..forecasting.folder import RECIPE
    from ..language import plotting
    from ..runs.models import BEST

    for path in parsed.paths:
        if (path / BEST / RECIPE).is_file():
            raise ValueError(
                f"{path} is the run of a forecaster: draw it with holdover forecast plot {path}."
            )
    plotting.plot(parsed.paths, parsed.output)
