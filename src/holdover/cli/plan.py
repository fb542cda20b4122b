"""The verb plan: what a training will cost, before it begins."""

from typing import TYPE_CHECKING

from .verb import OptionsVerb

if TYPE_CHECKING:
    from rich.console import Console

    from ..planning.options import PlanOptions

VERBS = (
    OptionsVerb(
        name="plan",
        help="predict memory, time, GPU hours and communication of a training",
        description="Predict what holdover train will take on given GPUs: FLOPs, memory by part, "
        "seconds of a step, time and GPU hours, checkpoints and failures. It downloads only a model's "
        "configuration and creates no weights. --check compares with records of real runs.",
        epilog="As in: holdover plan --model llama --gpus 64 --hardware h200 --rows 64 --windows 8 "
        "--window 2048 --recompute window --shard --tokens 100e9",
        options="planning.options:PlanOptions",
        given_as="language.options:for_plain_twin",
        run="cli.plan:run_plan",
    ),
)


def run_plan(options: "PlanOptions") -> None:
    from rich.console import Console

    from ..planning.predict import plan
    from ..planning.show import show_plan
    from ..runs.provenance import provenance, write_record

    console = Console(highlight=False)
    if options.check:
        _show_check(options, console)
        return
    prediction = plan(options)
    show_plan(prediction, console)
    if options.json is not None:
        write_record(options.json, {"plan": prediction.to_dict(), "provenance": provenance()})
    if prediction.misfit is not None:
        raise ValueError(prediction.misfit)


def _show_check(options: "PlanOptions", console: "Console") -> None:
    from ..planning.prediction_checks import calibration, check, markdown

    comparisons, communication = check(options.check)
    console.print(markdown(comparisons, communication), soft_wrap=True, markup=False)
    if len({one.large for one in comparisons}) == 2:
        utilisation, launch = calibration(comparisons)
        console.print(
            f"\nMedians: {utilisation:.2f} of the peak in large windows, {1000 * launch:.1f} ms for a "
            "layer's launches in small ones.",
            soft_wrap=True,
        )
