"""The console output of holdover qa eval: one table, and notes on its numbers."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def show(record: Mapping[str, Any], console: Console) -> None:
    console.print(as_table(record))
    data = record["data"]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in data["kinds"].items())
    absent = data["not_in_context"]
    sentences = [f"Expected answers: {kinds}; {absent:,} do not occur in their context."]
    sentences += [sentence for row in record["rows"] for sentence in state_sentences(row)]
    sentences += [f"Note: {note}." for note in record["notes"]]
    for sentence in sentences:
        console.print(sentence, highlight=False, soft_wrap=True)


def as_table(record: Mapping[str, Any]) -> Table:
    data, rows = record["data"], record["rows"]
    table = Table(
        title=f"{data['source']}, {data['split']}: {data['questions']:,} questions",
        title_justify="left",
        caption="F1 and exact match in percent; loss: -log p of the expected answer; in brackets: 95% "
        "intervals over questions. difference: the first reader's F1 minus the row's, paired. The "
        "intervals do not cover what another training seed would change.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("reader", overflow="fold", min_width=8)
    for column in ("state", "F1", "EM", "loss", "difference"):
        table.add_column(column, justify="right", no_wrap=True)
    for row, difference in zip(rows, [None, *record["differences"]], strict=True):
        table.add_row(
            row["name"],
            row["carry"],
            percent(row["f1"]),
            f"{100 * row['em']['value']:.1f}",
            f"{row['nll']['value']:.3f}",
            "" if difference is None else percent(difference["f1"], "+"),
        )
    return table


def state_sentences(row: Mapping[str, Any]) -> list[str]:
    """Whether a reader uses its state."""
    if "state" not in row:
        return []
    use = row["state"]
    if use is None:
        return [f"{row['name']}: its state was not diagnosed."]
    parts = []
    for name, words in (("zeroed", "without state"), ("other", "with another question's state")):
        change = use[name]["f1"]["above_own"]
        loss = use[name]["nll"]["above_own"]
        bounds = f" [{100 * change['low']:+.1f}, {100 * change['high']:+.1f}]"
        parts.append(f"{words} F1 {100 * change['value']:+.1f}{bounds}, loss {loss['value']:+.3f}")
    questions = f"{use['questions']:,} questions with two or more windows"
    return [f"{row['name']}, {questions}: {'; '.join(parts)}.".replace("[", "\\[")]


def percent(interval: Mapping[str, Any], sign: str = "") -> str:
    value, low, high = (interval[name] for name in ("value", "low", "high"))
    if low is None:
        return f"{100 * value:{sign}.1f}"
    # Brackets would be read as markup without the backslash.
    return f"{100 * value:{sign}.1f} \\[{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"
