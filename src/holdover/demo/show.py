"""The demo's console output, from its record."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..bundled import PLAIN, RECURRENT
from .options import DemoOptions

Record = dict[str, Any]


def welcome(console: Console, record: Record, options: DemoOptions) -> None:
    bundled = (options.plain, options.recurrent) == (PLAIN, RECURRENT)
    known = (
        " Both were trained on the same books, which do not include this novel." if bundled else ""
    )
    console.print(
        f"Two language models: {options.plain} forgets each window, {options.recurrent} carries a "
        "state "
        f"to the next one.{known} They read {record['text']}: {record['tokens']:,} tokens, in "
        "windows "
        f"of {record['window']}.\n"
    )


def reading(console: Console, record: Record) -> None:
    table = Table(
        caption="Second lines: 95% intervals over blocks of windows. FLOPs per token, counted by "
        "torch;\n"
        "tokens/s with all rows a twin can read in parallel (the recurrent twin reads a novel in "
        "one).",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in ("twin", "overlap", "perplexity", "MFLOPs", "tokens/s", "GiB", ""):
        table.add_column(name, justify="left" if name in ("twin", "") else "right")
    for row in record["rows"]:
        table.add_row(
            row["twin"],
            str(row["overlap"]),
            bounded(row, row["perplexity"]),
            f"{row['flops_per_token'] / 1e6:.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['peak_memory'] / 2**30:.2f}",
            row["note"] or "",
        )
    console.print(table)
    difference = record["difference"]
    console.print(
        f"At overlap 0 the loss of the recurrent twin minus that of the plain twin is "
        f"{difference['value']:+.4f} nats per token {interval(difference)}, paired over "
        f"{difference['over']}: {verdict(difference)}."
    )


def verdict(difference: Record) -> str:
    if difference["low"] is None:
        return "too few for an interval"
    if difference["high"] < 0:
        return "the memory helps"
    return "it is worse with memory" if difference["low"] > 0 else "they do not differ clearly"


def state(console: Console, record: Record) -> None:
    used = record["state"]
    console.print(
        f"Loss increase on the same windows: {used['zeroed']['value']:+.4f} nats per token "
        f"{interval(used['zeroed'])} without the state, {used['other']['value']:+.4f} "
        f"{interval(used['other'])} with the state of another part of the novel. The state has "
        f"{used['bytes'] / 1000:,.0f} kB for a text of any length."
    )
    if used["history"]:
        console.print(
            "Loss increase with only a few windows of history: "
            + ", ".join(f"{p['windows']}: {p['above_own']:+.4f}" for p in used["history"])
            + "."
        )


def writing(console: Console, record: Record) -> None:
    made = record["writing"]
    # The first measurement still contains the memory for reading the prompt.
    used = [size for _, size in made["memory"][1:]] or [made["memory"][0][1]]
    stopped = "did not stop"
    if made["stock_error"]:
        stopped = f"stops after {made['stock_tokens']} ({made['stock_error']})"
    console.print(
        f"\n\n{made['tokens']:,} tokens in {made['windows']} windows, "
        f"{made['tokens_per_second']:,.0f} per second; memory between {min(used) / 2**20:,.1f} and "
        f"{max(used) / 2**20:,.1f} MiB. The stock model {stopped}."
    )


def learning(console: Console, record: Record) -> None:
    trained = record["learning"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column(f"held-out end of {trained['text']}, windows of {trained['window']}")
    table.add_column("perplexity", justify="right")
    names = {
        "before": "the plain twin, before",
        "after": f"after {trained['steps']} steps, with the state",
        "after_zeroed": "after, without the state",
        "after_other": "after, with the state of another part",
    }
    for key, name in names.items():
        table.add_row(name, bounded(trained[key], trained[key]["value"]))
    console.print(table)
    console.print(
        "Much of the gain comes from the text itself, which the model now knows. The effect of the "
        "state is the difference to the lines below. (The validation at step 0 had an untrained "
        "state.)"
    )


def farewell(console: Console, record: Record, path: Path) -> None:
    seconds = record["seconds"]
    spent = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    console.print(f"\n{spent}: {sum(seconds.values()):.0f} s. Record: {path}", soft_wrap=True)


def bounded(measure: Record, value: float) -> str:
    if measure["low"] is None:
        return f"{value:.2f}"
    return f"{value:.2f}\n{measure['low']:.2f}, {measure['high']:.2f}"


def interval(measure: Record) -> str:
    return "" if measure["low"] is None else f"[{measure['low']:+.4f}, {measure['high']:+.4f}]"
