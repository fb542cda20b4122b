"""The table that holdover forecast eval prints, and the notes below it."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..evaluation.driver import FEW_UNITS


def show(record: Mapping[str, Any], console: Console) -> None:
    console.print(as_table(record))
    first = record["rows"][0]
    if first["units"] < FEW_UNITS:
        console.print(
            f"The intervals are over {first['units']} {first['interval_over']}: too few to say much.",
            highlight=False,
            soft_wrap=True,
        )
    for note in record["notes"]:
        console.print(f"Note: {note}.", highlight=False, soft_wrap=True)


def as_table(record: Mapping[str, Any]) -> Table:
    data, (own, *others) = record["data"], record["rows"]
    ahead = data["recipe"]["ahead"]
    table = Table(
        title=f"{data['data']}, {data['part']}: {own['windows']:,} windows, {ahead} rows ahead",
        title_justify="left",
        caption=f"Errors of scaled values; in brackets 95% intervals over {own['interval_over']} "
        f"({own['units']}). The difference is the MSE of {own['name']} minus that of the row, paired. "
        "No interval covers what another training seed would change. In units: MAE over all columns, "
        "each in its own unit.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in ("forecaster", "MSE", "MAE", "difference", "in units"):
        if column == "forecaster":
            table.add_column(column, overflow="fold", min_width=10)
        else:
            table.add_column(column, justify="right", no_wrap=True)
    differences = [None, *record["differences"]]
    for row, difference in zip([own, *others], differences, strict=True):
        table.add_row(
            row["name"],
            bounded(row["intervals"]["mse"]),
            f"{row['scaled']['mae']:#.3g}",
            "" if difference is None else bounded(difference["mse"], "+"),
            f"{row['original']['mae']:#.3g}",
        )
    return table


def bounded(interval: Mapping[str, Any], sign: str = "") -> str:
    value, low, high = (interval[name] for name in ("value", "low", "high"))
    if low is None:
        return f"{value:{sign}#.3g}"
    # Without the backslash, rich takes the brackets as markup.
    return f"{value:{sign}#.3g} \\[{low:{sign}#.3g}, {high:{sign}#.3g}]"
