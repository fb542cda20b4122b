"""What a record keeps of a measurement.

A measure is a number, or {value, low, high, over} with the interval it has by itself and over what, or
with {sums, counts} besides: what every unit of the text adds above and below the line, so that two arms
that were scored on the same units can be compared in pairs. Units are few (documents, blocks): a record
holds no arrays, so that many of them are joined, neighbours first.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..evaluation.intervals import Resampled

MOST_UNITS = 300


def of_evaluation(record: Mapping[str, Any], row: int = 0) -> dict[str, Any]:
    """The measures of one overlap of an evaluation (`eval.json`)."""
    found = record["rows"][row]
    over = f"{found['units']} {found['interval_over']}"
    measures: dict[str, Any] = {
        name: bounded(found[name], found["intervals"][name], over)
        for name in found["intervals"]
        if found.get(name) is not None
    }
    measures["loss"] = {"value": found["nats"] / found["counts"]["tokens"], "over": over}
    units = found.get("per_unit")
    if units is not None:
        measures["loss"] |= in_units(units["nats"], units["tokens"])
    measures |= {
        "flops_per_token": found["flops_per_token"]["formula"],
        "flops_counted": found["flops_per_token"]["counted"],
        "tokens_per_second": found["tokens_per_second"],
        "reading_memory": found["peak_memory"]["bytes"],
    }
    for name, part in (found.get("next_token") or {}).items():
        if isinstance(part, int | float):
            measures[name] = part
    state = found.get("state") or {}
    for way in ("zeroed", "other"):
        # What the loss is above that with its own state, on the same windows.
        if part := state.get(way):
            bounds = part["low"], part["high"]
            windows = f"{state['units']} {state['interval_over']}"
            measures[f"state_{way}"] = bounded(part["above_own"], bounds, windows)
    return measures


def bounded(value: float, interval: Any, over: str) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {"value": value, "low": low, "high": high, "over": over}


def ratio(sums: Sequence[float], counts: Sequence[float], over: str) -> dict[str, Any]:
    """What was counted over how often it could be, its interval over units, and these for pairs."""
    above, below = np.asarray(sums, float), np.asarray(counts, float)
    value, *interval = Resampled(np.arange(len(above))).interval(above, below, lambda mean: mean)
    return {**bounded(value, interval, over), **in_units(above.tolist(), below.tolist())}


def paired_difference(ours: Mapping[str, Any], its: Mapping[str, Any]) -> dict[str, Any] | float:
    """What a measure is above another: unit by unit, where both were scored on the same ones."""
    if not same_units(ours, its):
        return value_of(ours) - value_of(its)
    difference = [one - other for one, other in zip(ours["sums"], its["sums"], strict=True)]
    return ratio(difference, ours["counts"], ours["over"])


def same_units(one: Any, other: Any) -> bool:
    return (
        isinstance(one, Mapping)
        and isinstance(other, Mapping)
        and "counts" in one
        and one["counts"] == other.get("counts")
    )


def in_units(sums: Sequence[float], counts: Sequence[float]) -> dict[str, Any]:
    """What a measure keeps for comparisons in pairs; `joined` units in a row are one where there are too
    many, which makes intervals no narrower."""
    joined = math.ceil(len(sums) / MOST_UNITS)
    if joined == 1:
        return {"sums": list(sums), "counts": list(counts)}
    firsts = np.arange(0, len(sums), joined)
    parts = {"sums": np.add.reduceat(sums, firsts), "counts": np.add.reduceat(counts, firsts)}
    return {name: part.tolist() for name, part in parts.items()} | {"joined": joined}


def value_of(measure: Any) -> float:
    return float(measure["value"] if isinstance(measure, Mapping) else measure)
