"""A plan as a table in the terminal."""

from rich.console import Console
from rich.table import Table

from .options import PlanOptions
from .predict import Plan

GIB = 2**30
GIGA = 1e9
# Smaller parts of memory get no row.
SMALLEST_SHOWN = GIB / 100


def table_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Section (on its first row only), name and value, as in the table and in docs/scaling.md."""
    options, seconds = plan.options, plan.seconds
    flops = plan.flops_a_token
    rows = [
        ("model", "parameters", f"{plan.model.parameters:,} ({plan.model.added:,} added)"),
        ("", "GPUs", _machines(options)),
        ("", "step", _step(plan)),
        ("FLOPs per token", "all", f"{sum(flops.values()) / GIGA:,.2f} G"),
        *(("", part, f"{value / GIGA:,.2f} G") for part, value in flops.items()),
        ("memory per GPU", "all", f"{plan.memory_bytes / GIB:,.1f} GiB of {plan.room / GIB:,.1f}"),
        *(
            ("", part, f"{value / GIB:,.2f} GiB")
            for part, value in plan.memory.items()
            if value >= SMALLEST_SHOWN
        ),
        ("seconds per step", "all", f"{seconds.step:,.2f}"),
        ("", "computing", f"{seconds.computing:,.2f}"),
        ("", "Adam", f"{seconds.adam:,.3f}"),
        ("", "communication", f"{seconds.communication:,.2f} ({_sent(plan)})"),
        ("", "exposed communication", f"{seconds.exposed:,.2f} ({_share(plan):.1%})"),
        ("speed", "tokens per second", f"{plan.tokens_a_second:,.0f}"),
        ("", "share of the peak", f"{plan.utilised:.1%}"),
    ]
    rows += [
        ("run", "tokens", f"{options.tokens:,} in {plan.steps:,} steps"),
        ("", "time", f"{plan.hours:,.1f} hours ({plan.hours / 24:,.1f} days)"),
        ("", "GPU hours", f"{plan.gpu_hours:,.0f}"),
        ("", "validations", f"{plan.validation_share:.2%} of the time"),
        ("checkpoints", "size", _checkpoint(plan)),
        ("", "--save-every", f"{plan.save_every:,} steps ({_minutes(plan):,.0f} minutes)"),
        ("", "expected failures", f"{plan.failures:,.2f} (every {_between(plan)})"),
        ("", "lost time", f"{plan.lost_share:.2%} of the time"),
    ]
    return rows


def _machines(options: PlanOptions) -> str:
    nodes = -(-options.gpus // options.gpus_per_node)
    split = "sharded" if options.shard else "replicated" if options.gpus > 1 else "alone"
    return f"{options.gpus} x {options.hardware} in {nodes} node{'s' * (nodes > 1)}, {split}"


def _step(plan: Plan) -> str:
    options = plan.options
    return (
        f"{plan.tokens_a_step:,} tokens: {options.rows} row{'s' * (options.rows > 1)} x "
        f"{options.windows * options.accumulate} "
        f"windows of {options.recurrence.window}, overlap {options.recurrence.overlap}"
    )


def _sent(plan: Plan) -> str:
    return f"{plan.communication.sent / GIGA:,.1f} GB sent per GPU"


def _share(plan: Plan) -> float:
    return plan.seconds.exposed / plan.seconds.step


def _checkpoint(plan: Plan) -> str:
    return f"{plan.checkpoint_bytes / GIGA:,.1f} GB, {plan.checkpoint_seconds:,.0f} s to write"


def _minutes(plan: Plan) -> float:
    return plan.save_every * plan.seconds.step / 60


def _between(plan: Plan) -> str:
    return f"{plan.hours_between_failures:,.0f} hours"


def show_plan(plan: Plan, console: Console) -> None:
    table = Table(show_header=False, title=f"Plan for {plan.options.model}", title_justify="left")
    table.add_column("section", no_wrap=True)
    table.add_column("name", no_wrap=True)
    table.add_column("value")
    for section, name, value in table_rows(plan):
        if section and name != "parameters":
            table.add_section()
        table.add_row(section, name, value)
    console.print(table)
