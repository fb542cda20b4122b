"""A plan as a table."""

from rich.console import Console
from rich.table import Table

from .options import PlanOptions
from .predict import Plan

GIB = 2**30
GIGA = 1e9
# Bytes that are worth a row.
SHOWN = GIB / 100


def table_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Heading of a part (once), what, and how much: as the table shows it and docs/scaling.md quotes."""
    options, seconds = plan.options, plan.seconds
    flops = plan.flops_a_token
    rows = [
        ("model", "parameters", f"{plan.model.parameters:,} ({plan.model.added:,} added)"),
        ("", "GPUs", _machines(options)),
        ("", "a step", _step(plan)),
        ("FLOPs a token", "all", f"{sum(flops.values()) / GIGA:,.2f} G"),
        *(("", part, f"{value / GIGA:,.2f} G") for part, value in flops.items()),
        ("memory a GPU", "all", f"{plan.memory_bytes / GIB:,.1f} GiB of {plan.room / GIB:,.1f}"),
        *(
            ("", part, f"{value / GIB:,.2f} GiB")
            for part, value in plan.memory.items()
            if value >= SHOWN
        ),
        ("seconds a step", "all", f"{seconds.step:,.2f}"),
        ("", "computing", f"{seconds.computing:,.2f}"),
        ("", "Adam", f"{seconds.adam:,.3f}"),
        ("", "talk", f"{seconds.talk:,.2f} ({plan.talk.sent / GIGA:,.1f} GB sent by a GPU)"),
        ("", "talk that is waited for", f"{seconds.exposed:,.2f} ({_share(plan):.1%})"),
        ("speed", "tokens a second", f"{plan.tokens_a_second:,.0f}"),
        ("", "of the GPUs' peak", f"{plan.utilised:.1%}"),
    ]
    rows += [
        ("the run", "tokens", f"{options.tokens:,} in {plan.steps:,} steps"),
        ("", "time", f"{plan.hours:,.1f} hours ({plan.hours / 24:,.1f} days)"),
        ("", "GPU hours", f"{plan.gpu_hours:,.0f}"),
        ("", "validations", f"{plan.validation_share:.2%} of the time"),
        ("checkpoints", "one", _checkpoint(plan)),
        ("", "--save-every", f"{plan.save_every:,} steps ({_minutes(plan):,.0f} minutes)"),
        ("", "failures expected", f"{plan.failures:,.2f} (every {_between(plan)})"),
        ("", "lost to both", f"{plan.lost_share:.2%} of the time"),
    ]
    return rows


def _machines(options: PlanOptions) -> str:
    nodes = -(-options.gpus // options.gpus_per_node)
    held = "in shards" if options.shard else "as copies" if options.gpus > 1 else "alone"
    return f"{options.gpus} x {options.hardware} in {nodes} node{'s' * (nodes > 1)}, {held}"


def _step(plan: Plan) -> str:
    options = plan.options
    return (
        f"{plan.tokens_a_step:,} tokens: {options.rows} row{'s' * (options.rows > 1)} x "
        f"{options.windows * options.accumulate} "
        f"windows of {options.recurrence.window}, overlap {options.recurrence.overlap}"
    )


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
    table.add_column("part", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("how much")
    for part, what, much in table_rows(plan):
        if part and what != "parameters":
            table.add_section()
        table.add_row(part, what, much)
    console.print(table)
