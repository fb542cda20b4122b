"""The verb plan: what a training will take, before it is begun."""

import argparse
from typing import TypeAlias

from rich.console import Console

from ..language.options import for_plain_twin
from ..planning.options import ALIASES, PlanOptions
from ..planning.predict import plan
from ..planning.prediction_checks import calibration, check, markdown
from ..planning.show import show_plan
from ..runs.provenance import provenance, write_record
from ..runs.settings import add_flags, build, given_settings

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_plan(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "plan",
        help="what a training will take: memory, time, GPU hours, talk between GPUs",
        description="Predict what holdover train will take on given GPUs: FLOPs, memory by part, "
        "seconds of a step, time and GPU hours, checkpoints and failures. Nothing is downloaded but a "
        "model's configuration, and no weights are made. --check compares with records of real runs.",
        epilog="As in: holdover plan --model llama --gpus 64 --hardware h200 --rows 64 --windows 8 "
        "--window 2048 --recompute window --shard --tokens 100e9",
        allow_abbrev=False,
    )
    add_flags(verb, PlanOptions, ALIASES)
    verb.set_defaults(run=run_plan, verb=verb)


def run_plan(parsed: argparse.Namespace) -> None:
    given = given_settings(PlanOptions, parsed, ALIASES)
    options = build(PlanOptions, for_plain_twin(given))
    console = Console(highlight=False)
    if options.check:
        show_check(options, console)
        return
    found = plan(options)
    show_plan(found, console)
    if options.json is not None:
        write_record(options.json, {"plan": found.to_dict(), "provenance": provenance()})
    if found.misfit is not None:
        raise ValueError(found.misfit)


def show_check(options: PlanOptions, console: Console) -> None:
    checked, talks = check(options.check)
    console.print(markdown(checked, talks), soft_wrap=True, markup=False)
    if any(one.large for one in checked) and not all(one.large for one in checked):
        utilisation, launch = calibration(checked)
        console.print(
            f"\nMedians: {utilisation:.2f} of the peak in large windows, {1000 * launch:.1f} ms for a "
            "layer's launches in small ones.",
            soft_wrap=True,
        )
