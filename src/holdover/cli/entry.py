"""The command line: every verb parses its arguments, calls one function, and nothing more.

Exit codes: 0 done, 2 the request cannot be carried out (one sentence says why), 130 interrupted, 3 in
one of several processes: another one was lost or has said why all end.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .. import __version__
from ..backbones.heads import head_classes
from ..backbones.registry import BACKBONES
from ..demo.options import DemoOptions
from ..demo.run import run as demo
from ..forecasting.folder import RECIPE
from ..language.eval_options import EvalOptions
from ..language.evaluation import evaluate
from ..language.options import TrainOptions, for_plain_twin
from ..language.plotting import compare, plot
from ..language.training import train
from ..runs.launch import end_with_starter
from ..runs.models import BEST, recurrence_of
from ..runs.processes import FailedElsewhereError, close_talk, is_lost_peer, started_processes
from ..runs.settings import add_flags, build, given_settings, parse_words
from ..training.options import ALIASES as TRAIN_ALIASES
from .forecast import add_forecast
from .lens import add_lens
from .plan import add_plan
from .qa import add_qa
from .run import add_run_and_report
from .submit import add_jobs, add_submit, asked_settings, split_command
from .text import add_text_verbs
from .training import make_trainer


def main(argv: Sequence[str] | None = None) -> int:
    end_with_starter()
    try:
        given = list(sys.argv[1:] if argv is None else argv)
        words, behind = split_command(given)
        options = parse_words(_parser(), words)
        options.arguments, options.command = given, behind
        check_alone(options)
        found = options.run(options)
        close_talk()
        # Who starts processes returns their exit code; other verbs what they found, or nothing.
        return found if isinstance(found, int) else 0
    except KeyboardInterrupt:
        return _say("interrupted.", 130)
    except torch.OutOfMemoryError as error:
        told = " ".join(str(error).split()).partition(". ")[0]
        return _say(f"{told}: give fewer rows or windows, or recompute.", 2)
    except FailedElsewhereError:
        return 3
    except (ValueError, OSError, FloatingPointError) as error:
        return _say(str(error), 2)
    except RuntimeError as error:
        if not is_lost_peer(error):
            raise
        return _say("another process was lost.", 3)


def _say(told: str, code: int) -> int:
    """One line on standard error, with the process's number where there are several."""
    number = os.environ.get("RANK", "0")
    who = f"holdover, process {number}" if started_processes() > 1 and number != "0" else "holdover"
    print(f"{who}: {told}", file=sys.stderr)
    return code


def check_alone(options: argparse.Namespace) -> None:
    """Refuse several processes to verbs that would do everything several times."""
    if started_processes() > 1 and not getattr(options, "shares_work", False):
        raise ValueError(
            f"{options.verb.prog} works in one process, and {started_processes()} were started: start "
            "it without a launcher."
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdover",
        description="Recurrent memory for pretrained transformers: what one window held, the next "
        "one knows.",
    )
    parser.add_argument("--version", action="version", version=f"holdover {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_train(verbs)
    _add_eval(verbs)
    _add_compare(verbs)
    _add_plot(verbs)
    add_text_verbs(verbs)
    add_lens(verbs)
    add_forecast(verbs)
    add_qa(verbs)
    add_run_and_report(verbs)
    add_plan(verbs)
    add_submit(verbs, lambda words: asked_settings(parser, words))
    add_jobs(verbs)
    _add_demo(verbs)
    about = "list the architectures and the model classes holdover runs"
    verb = verbs.add_parser("backbones", help=about, description=f"{about.capitalize()}.")
    verb.set_defaults(run=lambda options: show_backbones(), verb=verb)
    return parser


def _add_train(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "train",
        help="train a language model with a carried state, or its plain twin",
        description="Train a language model window by window. With --recurrence none the same tokens "
        "in the same order train the plain twin.",
        allow_abbrev=False,
    )
    make_trainer(
        verb,
        TrainOptions,
        TRAIN_ALIASES,
        train,
        begin_with=_own_recurrence,
        given_as=for_plain_twin,
    )


def _own_recurrence(given: dict[str, Any]) -> dict[str, Any]:
    """A model that has a recurrence keeps its settings, where no others are asked for."""
    own = recurrence_of(given.get("model", ""))
    return {"recurrence": own} if own and (own["carry"] != "none" or own.get("rsa")) else {}


def _add_eval(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "eval",
        help="perplexity, accuracy, cost, and whether the state is used",
        description="Score a text with a model at one or more overlaps: one table, one JSON record, "
        "plots.",
        allow_abbrev=False,
    )
    add_flags(verb, EvalOptions)
    verb.set_defaults(
        run=lambda parsed: evaluate(eval_options(parsed)),
        asked=eval_options,
        verb=verb,
        shares_work=True,
    )


def eval_options(parsed: argparse.Namespace) -> EvalOptions:
    return build(EvalOptions, given_settings(EvalOptions, parsed))


def _add_plot(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "plot",
        help="plot training curves of several runs, or several evaluations side by side",
        description="Plot runs (training and validation loss) and evaluations (perplexity against "
        "FLOPs, loss by position, use of the state), as PNG and SVG.",
    )
    verb.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="folder of a run or of an evaluation"
    )
    verb.add_argument(
        "--output",
        type=Path,
        default=Path("runs/plots"),
        metavar="DIR",
        help="folder for the plots",
    )
    verb.set_defaults(run=_plot, verb=verb)


def _plot(parsed: argparse.Namespace) -> None:
    for path in parsed.paths:
        if (path / BEST / RECIPE).is_file():
            raise ValueError(
                f"{path} is the run of a forecaster: draw it with holdover forecast plot {path}."
            )
    plot(parsed.paths, parsed.output)


def _add_compare(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "compare",
        help="compare evaluations on the same text, with paired intervals",
        description="Show what each evaluation's loss is above that of the first, with intervals from "
        "drawing the same documents (or blocks of windows) for all.",
    )
    verb.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="folder of an evaluation, or its record"
    )
    verb.set_defaults(run=lambda parsed: compare(parsed.paths), verb=verb)


def _add_demo(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = verbs.add_parser(
        "demo",
        help="what a carried state does, with the models and the novel of the package",
        description="Two small pretrained twins, one with a memory, read a novel: perplexity and cost, "
        "whether the state is used, writing past the last position, a minute of training, and a page to "
        "look at. About three minutes on two cores; --stages and --novel-tokens make it shorter.",
        allow_abbrev=False,
    )
    add_flags(verb, DemoOptions)
    verb.set_defaults(
        run=lambda parsed: demo(build(DemoOptions, given_settings(DemoOptions, parsed))), verb=verb
    )


def show_backbones() -> None:
    table = Table(title="Architectures and the classes holdover runs", title_justify="left")
    table.add_column("architecture", no_wrap=True)
    table.add_column("classes (transformers)")
    for model_type, row in BACKBONES.items():
        table.add_row(model_type, ", ".join(head_classes(model_type, row).values()))
    Console().print(table)
