"""Measures as a record stores them.

A measure is a number, or {value, low, high, over} with its own interval and the units of that interval.
It may also have {sums, counts}: the numerator and denominator of every unit of the text, so that two
arms scored on the same units can be compared in pairs. A record holds no arrays: if there are many units
(documents, blocks), neighbours are joined.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..evaluation.intervals import Resampled

MOST_UNITS = 300


def of_evaluation(record: Mapping[str, Any], row: int = 0) -> dict[str, Any]:
    """The measures of one overlap of an evaluation (`eval.json`)."""
    scores = record["rows"][row]
    over = f"{scores['units']} {scores['interval_over']}"
    measures: dict[str, Any] = {
        name: bounded(scores[name], scores["intervals"][name], over)
        for name in scores["intervals"]
        if scores.get(name) is not None
    }
    measures["loss"] = {"value": scores["nats"] / scores["counts"]["tokens"], "over": over}
    units = scores.get("per_unit")
    if units is not None:
        measures["loss"] |= in_units(units["nats"], units["tokens"])
    measures |= {
        "flops_per_token": scores["flops_per_token"]["formula"],
        "flops_counted": scores["flops_per_token"]["counted"],
        "tokens_per_second": scores["tokens_per_second"],
        "reading_memory": scores["peak_memory"]["bytes"],
    }
    for name, part in (scores.get("next_token") or {}).items():
        if isinstance(part, int | float):
            measures[name] = part
    state = scores.get("state") or {}
    for way in ("zeroed", "other"):
        # How much the loss rises above that with the own state, on the same windows.
        if part := state.get(way):
            bounds = part["low"], part["high"]
            windows = f"{state['units']} {state['interval_over']}"
            measures[f"state_{way}"] = bounded(part["above_own"], bounds, windows)
    return measures


def bounded(value: float, interval: Any, over: str) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {"value": value, "low": low, "high": high, "over": over}


def ratio(sums: Sequence[float], counts: Sequence[float], over: str) -> dict[str, Any]:
    """A ratio of two sums, its interval over units, and the units for paired comparisons."""
    above, below = np.asarray(sums, float), np.asarray(counts, float)
    value, *interval = Resampled(np.arange(len(above))).interval(above, below, lambda mean: mean)
    return {**bounded(value, interval, over), **in_units(above.tolist(), below.tolist())}


def paired_difference(ours: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any] | float:
    """A measure minus another: unit by unit, if both were scored on the same units."""
    if not same_units(ours, base):
        return value_of(ours) - value_of(base)
    difference = [one - other for one, other in zip(ours["sums"], base["sums"], strict=True)]
    return ratio(difference, ours["counts"], ours["over"])


def same_units(one: Any, other: Any) -> bool:
    return (
        isinstance(one, Mapping)
        and isinstance(other, Mapping)
        and "counts" in one
        and one["counts"] == other.get("counts")
    )


def in_units(sums: Sequence[float], counts: Sequence[float]) -> dict[str, Any]:
    """The parts of a measure for paired comparisons.

    With too many units, each run of `joined` neighbours becomes one, which makes intervals no narrower.
    """
    joined = math.ceil(len(sums) / MOST_UNITS)
    if joined == 1:
        return {"sums": list(sums), "counts": list(counts)}
    firsts = np.arange(0, len(sums), joined)
    parts = {"sums": np.add.reduceat(sums, firsts), "counts": np.add.reduceat(counts, firsts)}
    return {name: part.tolist() for name, part in parts.items()} | {"joined": joined}


def value_of(measure: Any) -> float:
    return float(measure["value"] if isinstance(measure, Mapping) else measure)
