"""The output of holdover eval: tables, sentences about the state, plots."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from ..evaluation import plots
from ..evaluation.collapse import collapse_sentence
from ..evaluation.driver import FEW_UNITS
from ..tokenization.byte_encoder import SYMBOLS


def show(record: Mapping[str, Any], console: Console) -> None:
    for table in tables(record, console.width):
        console.print(table)
    for row in record["rows"]:
        if row["note"]:
            console.print(f"overlap {row['overlap']}: {row['note']}.", highlight=False)
    for row in record["rows"]:
        if row.get("collapse", {}).get("collapsed"):
            warning = f"overlap {row['overlap']}: {collapse_sentence(row['collapse'])}"
            console.print(warning, style="bold red", highlight=False)
    for row in record["rows"]:
        if row.get("state"):
            console.print(
                f"overlap {row['overlap']}: {state_sentence(row['state'])}", highlight=False
            )


def tables(record: Mapping[str, Any], width: int) -> list[Table]:
    """One table, or several if its columns are too wide for the console."""
    rows, data = record["rows"], record["data"]
    tokens = rows[0]["counts"]["tokens"]
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "overlap": lambda row: str(row["overlap"]),
        "ppl/token": lambda row: _bounded(row, "perplexity_per_token"),
        "ppl/word": lambda row: _bounded(row, "perplexity_per_word"),
        "ppl/word+eos": lambda row: (
            _bounded(row, "perplexity_per_word_and_line") if _counts_lines(record) else "-"
        ),
        "bits/byte": lambda row: _bounded(row, "bits_per_byte"),
        "bits/char": lambda row: _number(row["bits_per_character"]),
        "top-1": lambda row: _share(row, "top1_accuracy"),
        "top-5": lambda row: _share(row, "top5_accuracy"),
        "FLOPs": lambda row: f"{row['flops_per_token']['as_printed']:.2e}",
        "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
        "GiB": lambda row: f"{row['peak_memory']['bytes'] / 2**30:.1f}",
    }
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    cells = {name: column for name, column in cells.items() if set(column) != {"-"}}
    parts = [_table(part) for part in _side_by_side(cells, width)]
    documents = data["documents_read"]
    parts[0].title = (
        f"{record['model']['name']} on {data['source']} ({data['split']}): {tokens:,} tokens scored "
        f"in {documents:,} {'document' if documents == 1 else 'documents'}"
    )
    if isinstance(rows[0]["carried_through"], int):
        parts[0].title += f", the state reset every {rows[0]['carried_through']} windows"
    units = rows[0]["units"]
    few = ", too few to be trusted" if units < FEW_UNITS else ""
    intervals = f"Second lines: 95% intervals over {units} {rows[0]['interval_over']}{few}."
    if units == 1:
        intervals = f"No intervals: {rows[0]['interval_over']}."
    parts[-1].caption = (
        f"{intervals} FLOPs per token, by the papers' formula; tokens/s with "
        f"{rows[0]['rows_side_by_side']} rows in a batch; GiB: {rows[0]['peak_memory']['kind']}, peak."
    )
    return parts


def _counts_lines(record: Mapping[str, Any]) -> bool:
    """WikiText's published word counts include one <eos> per line."""
    return record["data"]["source"].startswith("wikitext")


def _side_by_side(cells: Mapping[str, list[str]], width: int) -> list[dict[str, list[str]]]:
    """The columns in groups that fit into this width; the first column leads every group."""
    (lead, leading), *others = cells.items()
    groups: list[dict[str, list[str]]] = [{lead: leading}]
    for name, column in others:
        group = {**groups[-1], name: column}
        if len(groups[-1]) > 1 and _width(group) > width:
            groups.append({lead: leading, name: column})
        else:
            groups[-1] = group
    return groups


def _width(cells: Mapping[str, list[str]]) -> int:
    """Characters that a table of these columns takes: three between columns and two at its edges."""
    widest = [
        max(len(line) for text in (name, *column) for line in text.split("\n"))
        for name, column in cells.items()
    ]
    return sum(widest) + 3 * len(widest) - 1


def _table(cells: Mapping[str, list[str]]) -> Table:
    table = Table(title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in cells:
        table.add_column(name, justify="right", no_wrap=True)
    for line in zip(*cells.values(), strict=True):
        table.add_row(*line)
    return table


def markdown(records: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table of several models' evaluations on one text, a row for each overlap."""
    lines = [
        "| model | overlap | bits a byte | top-1 | FLOPs a token | state zeroed | another's state |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, record in records.items():
        for row in record["rows"]:
            low, high = row["intervals"]["bits_per_byte"]
            cells = [
                name,
                str(row["overlap"]),
                f"{row['bits_per_byte']:.3f} [{low:.3f}, {high:.3f}]",
                _share(row, "top1_accuracy"),
                f"{row['flops_per_token']['formula']:.2e}",
            ]
            for spoiled in ("zeroed", "other"):
                loss = row.get("state", {}).get(spoiled)
                cells.append(
                    f"{loss['above_own']:+.4f} [{loss['low']:+.4f}, {loss['high']:+.4f}]"
                    if loss
                    else ""
                )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def state_sentence(state: Mapping[str, Any]) -> str:
    """Whether the model uses its state, with the intervals of that verdict."""

    def change(name: str) -> str:
        loss = state[name]
        bounds = "" if loss["low"] is None else f" [{loss['low']:+.4f}, {loss['high']:+.4f}]"
        return f"{loss['above_own']:+.4f}{bounds}"

    other = state["other"]
    if other["low"] is None:
        verdict = "was tested on too few windows for a verdict"
    elif other["low"] > 0:
        verdict = "is used"
    elif other["high"] < 0:
        verdict = "does harm"
    else:
        verdict = "makes no clear difference"
    whose = "another document's" if state["other_is"] == "another document" else "a far window's"
    return (
        f"the state {verdict}. The loss, in nats per token on {state['windows']:,} windows, changes by "
        f"{change('zeroed')} without it and by {change('other')} with {whose}.{_reach(state)}"
    )


def _reach(state: Mapping[str, Any]) -> str:
    """How many windows of history give nine tenths of the state's gain."""
    above = [point["above_own"] for point in state["history"]]
    if len(above) < 2 or above[0] <= 0:
        return ""
    for windows, loss in enumerate(above):
        if loss <= 0.1 * above[0]:
            history = "1 window" if windows == 1 else f"{windows} windows"
            return f" A history of {history} gives nine tenths of the gain."
    return f" The model uses more than {len(above) - 1} windows of history."


def write_plots(folder: Path, records: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """Plots of one or more records: perplexity against FLOPs, loss by position, use of the state."""
    written: list[Path] = []
    key, measure = _plotted(records)
    points = {
        name: [
            (
                row["flops_per_token"]["formula"],
                row[key],
                *row["intervals"][key],
                f"o={row['overlap']}",
            )
            for row in record["rows"]
        ]
        for name, record in records.items()
    }
    written += plots.perplexity_against_flops(folder / "perplexity_flops", points, measure)
    positions = {
        f"{name}, overlap {row['overlap']}": np.array(
            [np.nan if value is None else value for value in row["loss_by_position"]]
        )
        for name, record in records.items()
        for row in record["rows"]
    }
    written += plots.loss_by_position(folder / "loss_by_position", positions)
    distances = {
        f"{name}, overlap {row['overlap']}": [(part["to"], part["loss"]) for part in parts]
        for name, record in records.items()
        for row in record["rows"]
        # A text of one window has no distances; records of older versions have none either.
        if len(parts := row.get("loss_by_distance", [])) > 1
    }
    if distances:
        written += plots.loss_by_distance(folder / "loss_by_distance", distances)
    for name, record in records.items():
        for row in record["rows"]:
            state = row.get("state")
            if state and state["history"] and state["gradient_norms"]:
                history = [
                    (point["windows"], point["above_own"], point["low"], point["high"])
                    for point in state["history"]
                ]
                norms = [(point["distance"], point["norm"]) for point in state["gradient_norms"]]
                stem = folder / f"state_{_as_file_name(name)}_overlap{row['overlap']}"
                written += plots.state_use(
                    stem, history, norms, "Nats per token above the full history's"
                )
    return written


def _plotted(records: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The measure that papers print, among those that all records have; and its label."""
    if all(_counts_lines(record) for record in records.values()):
        return "perplexity_per_word_and_line", "Perplexity per word (and <eos>)"
    rows = [row for record in records.values() for row in record["rows"]]
    if all(row["perplexity_per_word"] for row in rows) and not _reads_bytes(records):
        return "perplexity_per_word", "Perplexity per word"
    return "perplexity_per_token", "Perplexity per token"


def _reads_bytes(records: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(record["data"].get("tokenizer") in SYMBOLS for record in records.values())


def _as_file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)


def _bounded(row: Mapping[str, Any], name: str) -> str:
    value = row[name]
    if value is None:
        return "-"
    low, high = row["intervals"].get(name, (None, None))
    bounds = "" if low is None else f"\n{_number(low)}, {_number(high)}"
    return f"{_number(value)}{bounds}"


def _share(row: Mapping[str, Any], name: str) -> str:
    return f"{100 * row['next_token'][name]:.1f} %" if "next_token" in row else "-"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 1e6:
        return f"{value:.2e}"
    decimals = 3 if abs(value) < 10 else 2 if abs(value) < 1000 else 0
    return f"{value:,.{decimals}f}"
