"""Numbers of a report computed again out of its records, with nothing of the report's own arithmetic."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from scipy.stats import t

# An interval over seeds is of no fewer.
FEWEST = 3
# Nor one over units of text.
FEWEST_UNITS = 8

# By arm and seed.
Runs = Mapping[str, Mapping[int, Mapping[str, Any]]]


class Found(NamedTuple):
    value: float
    bounds: tuple[float, float] | None
    """Of three seeds or more; of one alone, what its record has."""
    runs: set[str]
    seeds: int


def read_all(results: Path) -> dict[str, Runs]:
    """By section of the report."""
    found = defaultdict(lambda: defaultdict(dict))
    for path in results.glob("*/*/*.json"):
        record = json.loads(path.read_text())
        if record["record"] == "experiment run":
            section = f"{path.parent.parent.name}-{path.parent.name}"
            found[section][record["arm"]][record["seed"]] = record
    return found


def number(runs: Runs, told: Mapping[str, str]) -> Found | None:
    """What data attributes tell: a mean, or that of differences by seed, and Student's t."""
    ours = _having(runs, told["arm"], told["metric"])
    base = _having(runs, told["minus"], told["minus-metric"]) if "minus" in told else {}
    pairs = [(one, base.get(seed)) for seed, one in ours.items() if not base or seed in base]
    if not pairs or ("minus" in told and not base):
        return None
    values = [one.value - (its.value if its else 0.0) for one, its in pairs]
    names = {one.run for pair in pairs for one in pair if one}
    if "largest" in told:
        return Found(max(values), None, names, len(values))
    if "over-units" in told and all(one.counted for pair in pairs for one in pair if one):
        # Of all seeds together; its interval is drawn, and not computed again.
        groups = zip(*([one for one in pair if one] for pair in pairs), strict=True)
        shares = [_share(group) for group in groups]
        return Found(shares[0] - sum(shares[1:]), None, names, 1)
    mean, seeds = fmean(values), len(values)
    if seeds < FEWEST:
        own = pairs[0][0].bounds if seeds == 1 and not base else None
        return Found(mean, own, names, seeds)
    half = t.ppf(0.975, seeds - 1) * stdev(values) / math.sqrt(seeds)
    low, high = mean - half, mean + half
    if not base:
        # An interval ends where its measure does, unless a run lies beyond.
        low = low if "+" in told["form"] or min(values) < 0 else max(low, 0.0)
        high = min(high, 1.0) if "share" in told and max(values) <= 1 else high
    return Found(mean, (low, high), names, seeds)


class _Measured(NamedTuple):
    value: float
    bounds: tuple[float, float] | None
    run: str
    counted: tuple[float, float] | None
    """What it is a share of, above and below the line, where its record has both."""


def _share(group: Sequence[_Measured]) -> float:
    sums, counts = zip(*(one.counted for one in group if one.counted), strict=True)
    return sum(sums) / sum(counts)


def _having(runs: Runs, arm: str, metric: str) -> dict[int, _Measured]:
    """By seed."""
    found = {}
    for seed, record in runs.get(arm, {}).items():
        measure = record["measures"].get(metric)
        if measure is None:
            continue
        measure = measure if isinstance(measure, dict) else {"value": measure}
        units = re.match(r"[\d,]+", measure.get("over", ""))
        enough = units is None or int(units[0].replace(",", "")) >= FEWEST_UNITS
        known = measure.get("low") is not None and enough
        kept = "sums" in measure
        counted = (sum(measure["sums"]), sum(measure["counts"])) if kept else None
        bounds = (measure["low"], measure["high"]) if known else None
        found[seed] = _Measured(float(measure["value"]), bounds, record["run"], counted)
    return found


def curve(runs: Runs, told: Mapping[str, str]) -> tuple[list[list[float]], set[str]]:
    """The mean over seeds, point by point to where the shortest ends; above a base seed by seed. And the
    names of the runs."""
    name, arms = told["curve"], [told[part] for part in ("arm", "above") if part in told]
    having = [
        {seed: one for seed, one in runs.get(arm, {}).items() if name in one["curves"]}
        for arm in arms
    ]
    seeds = set.intersection(*map(set, having))
    curves, names = [], set()
    for seed in seeds:
        ours, *base = [one[seed]["curves"][name] for one in having]
        for under in base:
            ours = [(x, y - its) for (x, y), (_, its) in zip(ours, under, strict=False)]
        curves.append(ours)
        names |= {one[seed]["run"] for one in having}
    points = zip(*curves, strict=False)
    return [[fmean(values) for values in zip(*at, strict=True)] for at in points], names
