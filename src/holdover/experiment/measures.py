"""What a record keeps of a measurement.

A measure is a number, or {value, low, high, over} with the interval it has by itself and over what, or
with {sums, counts} besides: what every unit of the text adds above and below the line, so that two arms
that were scored on the same units can be compared in pairs. Units are few (documents, blocks): a record
holds no arrays.
"""

from collections.abc import Mapping
from typing import Any

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
    if units is not None and len(units["nats"]) <= MOST_UNITS:
        measures["loss"] |= {"sums": units["nats"], "counts": units["tokens"]}
    measures |= {
        "flops_per_token": found["flops_per_token"]["formula"],
        "flops_counted": found["flops_per_token"]["counted"],
        "tokens_per_second": found["tokens_per_second"],
        "reading_memory": found["peak_memory"]["bytes"],
    }
    for name, part in (found.get("next_token") or {}).items():
        if isinstance(part, int | float):
            measures[name] = part
    for way in ("zeroed", "other_document"):
        part = (found.get("state") or {}).get(way)
        if part is not None:
            measures[f"state_{way}"] = part
    return measures


def bounded(value: float, interval: Any, over: str) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {"value": value, "low": low, "high": high, "over": over}


def value_of(measure: Any) -> float:
    return float(measure["value"] if isinstance(measure, Mapping) else measure)
