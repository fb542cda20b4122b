"""Paired comparison of several models' evaluations on the same text.

The interval of a difference is narrower than the two intervals suggest, because a hard text is hard for
both models. For that reason records keep the sums of each unit.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from .intervals import Resampled


def differences(records: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For every row of every record, its loss minus that of the first row of the first record."""
    (first_name, first), *_ = records.items()
    base = first["rows"][0]
    result = []
    for name, record in records.items():
        for row in record["rows"]:
            _check_same_text(first_name, first, base, name, record, row)
            ours, theirs = row["per_unit"], base["per_unit"]
            resampled = Resampled(np.arange(len(ours["nats"])), seed=0)
            value, low, high = resampled.interval(
                np.array(ours["nats"]) - np.array(theirs["nats"]),
                np.array(ours["tokens"]),
                transform=lambda nats: nats,
            )
            result.append(
                {
                    "model": name,
                    "overlap": row["overlap"],
                    "loss": row["nats"] / row["counts"]["tokens"],
                    "above_first": value,
                    "low": low,
                    "high": high,
                    "flops": row["flops_per_token"]["formula"],
                }
            )
    return result


def as_table(records: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = differences(records)
    first = rows[0]
    over = next(iter(records.values()))["rows"][0]
    table = Table(
        title=f"Loss minus that of {first['model']} at overlap {first['overlap']}, nats per token",
        title_justify="left",
        caption=f"95% intervals, paired over {over['interval_over']} ({over['units']}). They do not "
        "cover what another training seed would change.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in ("model", "overlap", "loss", "difference", "95% interval", "FLOPs"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for row in rows:
        bounds = "-" if row["low"] is None else f"{row['low']:+.4f}, {row['high']:+.4f}"
        cells = [row["model"], str(row["overlap"]), f"{row['loss']:.4f}"]
        table.add_row(*cells, f"{row['above_first']:+.4f}", bounds, f"{row['flops']:.2e}")
    return table


def _check_same_text(
    first_name: str,
    first: Mapping[str, Any],
    base: Mapping[str, Any],
    name: str,
    record: Mapping[str, Any],
    row: Mapping[str, Any],
) -> None:
    for scored, model in ((base, first_name), (row, name)):
        if "per_unit" not in scored:
            raise ValueError(
                f"The evaluation of {model} does not list the losses of its documents (or blocks), so "
                "they cannot be paired: evaluate it again."
            )
    same = (
        first["data"]["sha256"] == record["data"]["sha256"]
        and base["interval_over"] == row["interval_over"]
        and base["per_unit"]["tokens"] == row["per_unit"]["tokens"]
    )
    if not same:
        raise ValueError(
            f"{first_name} and {name} were not scored on the same targets: evaluate both on the same "
            "text with the same tokenizer (with few documents also the same window and overlap)."
        )
