"""What the demo says on the console, from its record."""

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
        " Both were trained on the same books, and this novel was not among them."
        if bundled
        else ""
    )
    console.print(
        f"Two language models: {options.plain} forgets every window it leaves, {options.recurrent} "
        f"carries a state into the next.{known} They read {record['text']}: {record['tokens']:,} "
        f"tokens, {record['window']} at a time.\n"
    )


def reading(console: Console, record: Record) -> None:
    table = Table(
        caption="Second lines: 95% intervals over blocks of windows. FLOPs are a token's, as torch "
        "counts them;\ntokens/s with the rows a twin can read side by side (the recurrent one reads a "
        "novel in one).",
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
    found = record["difference"]
    console.print(
        f"At overlap 0 the recurrent twin's loss is {found['value']:+.4f} nats a token "
        f"{interval(found)} against the plain twin's, paired over {found['over']}: {verdict(found)}."
    )


def verdict(found: Record) -> str:
    if found["low"] is None:
        return "too few to say more"
    if found["high"] < 0:
        return "the memory helps"
    return "it is worse with it" if found["low"] > 0 else "they cannot be told apart"


def state(console: Console, record: Record) -> None:
    found = record["state"]
    console.print(
        f"The same windows without the state: {found['zeroed']['value']:+.4f} nats a token "
        f"{interval(found['zeroed'])}; with that of another part of the novel: "
        f"{found['other']['value']:+.4f} {interval(found['other'])}. The state is "
        f"{found['bytes'] / 1000:,.0f} kB, however long the text."
    )
    if found["history"]:
        console.print(
            "Begun with nothing, so many windows before: "
            + ", ".join(f"{p['windows']}: {p['above_own']:+.4f}" for p in found["history"])
            + "."
        )


def writing(console: Console, record: Record) -> None:
    found = record["writing"]
    # The first look still sees what reading the prompt took.
    used = [size for _, size in found["memory"][1:]] or [found["memory"][0][1]]
    stopped = "did not stop"
    if found["stock_error"]:
        stopped = f"stops after {found['stock_tokens']} ({found['stock_error']})"
    console.print(
        f"\n\n{found['tokens']:,} tokens through {found['windows']} windows, "
        f"{found['tokens_per_second']:,.0f} a second; memory between {min(used) / 2**20:,.1f} and "
        f"{max(used) / 2**20:,.1f} MiB. The stock model {stopped}."
    )


def learning(console: Console, record: Record) -> None:
    found = record["learning"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column(f"held-out end of {found['text']}, windows of {found['window']}")
    table.add_column("perplexity", justify="right")
    names = {
        "before": "the plain twin, before",
        "after": f"after {found['steps']} steps, with the state",
        "after_zeroed": "after, without the state",
        "after_other": "after, with that of another part",
    }
    for key, name in names.items():
        table.add_row(name, bounded(found[key], found[key]["value"]))
    console.print(table)
    console.print(
        "Much of what was gained is the text itself, which it now knows; what the state does is the "
        "difference to the lines below. (The validation at step 0 had a state that knew nothing yet.)"
    )


def farewell(console: Console, record: Record, path: Path) -> None:
    seconds = record["seconds"]
    spent = ", ".join(f"{name} {value:.0f} s" for name, value in seconds.items())
    console.print(f"\n{spent}: {sum(seconds.values()):.0f} s. Record: {path}", soft_wrap=True)


def bounded(found: Record, value: float) -> str:
    if found["low"] is None:
        return f"{value:.2f}"
    return f"{value:.2f}\n{found['low']:.2f}, {found['high']:.2f}"


def interval(found: Record) -> str:
    return "" if found["low"] is None else f"[{found['low']:+.4f}, {found['high']:+.4f}]"
