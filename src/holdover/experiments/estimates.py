"""Estimates of a value from records: the mean and its interval, and what they decide about a claim.

* Three seeds or more: the mean, with Student's t over seeds, clipped to the measure's range (shares end
  at 1). The interval shows what another seed would change, on the same text.
* One or two seeds: the mean, with an interval over units of the text. It shows what another text of this
  kind would change, with the same weights. (Student's t over two seeds is so wide that a second seed
  would undo what the first had decided, even if both agree.)
* Fewer than eight units: no interval. Resampling two blocks can only give values between the two.
* Seeds that train nothing and draw from the same few units (`over_units`) are pooled as one sample.
* Differences are paired: by seed, or with fewer seeds unit by unit.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..evaluation.intervals import Resampled
from .definition import Expectation, Value
from .measures import same_units, value_of
from .records import Records

# The fewest seeds, and the fewest units of text, for an interval over them.
FEWEST_SEEDS = 3
FEWEST_UNITS = 8
# Verdicts with fewer seeds.
FOR, PARTLY_FOR, AGAINST = "points for it", "points partly for it", "points against it"


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float | None
    high: float | None
    over: str
    """The units of the interval, in words."""
    sources: tuple[str, ...]
    """Names of the runs."""
    seeds: int
    """The number of seeds in the mean."""
    over_units: bool = False
    """The interval, if any, shows what another text would change, not another seed."""


def estimate(value: Value, records: Records) -> Estimate | None:
    """The estimate of a value; None if no record has its metric."""
    ours = _having(records.of(value.arm), value.metric)
    if value.minus is None:
        return _of_arm(value, ours) if ours else None
    others = _having(records.of(value.minus), value.minus_metric or value.metric)
    theirs = {record["seed"]: record for record in others}
    pairs = [(one, theirs[one["seed"]]) for one in ours if one["seed"] in theirs]
    return _of_pairs(value, pairs) if pairs else None


def _having(records: Sequence[Mapping[str, Any]], metric: str) -> list[Mapping[str, Any]]:
    return [record for record in records if record["measures"].get(metric) is not None]


def _of_arm(value: Value, records: Sequence[Mapping[str, Any]]) -> Estimate:
    measures = [record["measures"][value.metric] for record in records]
    names = tuple(record["run"] for record in records)
    if value.largest:
        over = f"the largest of {len(measures)} seeds"
        return Estimate(max(map(value_of, measures)), None, None, over, names, len(measures))
    if value.over_units and _of_the_same_units(measures):
        return _clipped(_over_pooled_units(measures, [], names), map(value_of, measures), value)
    if len(measures) >= FEWEST_SEEDS:
        values = [value_of(measure) for measure in measures]
        return _clipped(_over_seeds(values, names), values, value)
    first, *others = measures
    if others or not isinstance(first, Mapping) or first.get("low") is None:
        return _over_units(measures, [], names)
    over = f"one seed, {first.get('over', 'one run')}"
    bounds = (first["low"], first["high"]) if _enough(first) else (None, None)
    return Estimate(value_of(first), *bounds, over, names, 1, over_units=True)


def _of_pairs(
    value: Value, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> Estimate:
    names = tuple(record["run"] for pair in pairs for record in pair)
    metrics = value.metric, value.minus_metric or value.metric
    ours, theirs = (
        [pair[place]["measures"][name] for pair in pairs] for place, name in enumerate(metrics)
    )
    if value.over_units and _of_the_same_units([*ours, *theirs]):
        return _over_pooled_units(ours, theirs, names)
    if len(pairs) >= FEWEST_SEEDS:
        both = zip(ours, theirs, strict=True)
        return _over_seeds([value_of(one) - value_of(other) for one, other in both], names)
    return _over_units(ours, theirs, names)


def _over_units(ours: Sequence[Any], theirs: Sequence[Any], names: tuple[str, ...]) -> Estimate:
    """The mean of few runs, minus the mean of the others if there are any.

    It has an interval if all of them were scored on the same units.
    """
    values = [np.mean([value_of(one) for one in group]) for group in (ours, theirs) if group]
    difference = float(values[0] - sum(values[1:]))
    seeds = "one seed" if len(ours) == 1 else f"{len(ours)} seeds"
    first = ours[0]
    if not all(same_units(first, one) for one in (*ours, *theirs)):
        return Estimate(difference, None, None, seeds, names, len(ours))
    if not _enough(first):
        return Estimate(difference, None, None, f"{seeds}, {first['over']}", names, len(ours))
    sums = np.sum([one["sums"] for one in ours], axis=0)
    if theirs:
        sums = sums - np.sum([other["sums"] for other in theirs], axis=0)
    _, low, high = Resampled(np.arange(len(sums))).interval(
        sums, len(ours) * np.array(first["counts"]), transform=lambda mean: mean
    )
    over = f"{seeds}, {first['over']}"
    over += f", {first['joined']} at a time" if "joined" in first else ""
    over += ", paired" if theirs else ""
    return Estimate(difference, low, high, over, names, len(ours), over_units=True)


def _of_the_same_units(measures: Sequence[Any]) -> bool:
    """Whether all measures have sums over units, and the same number of them."""
    kept = [len(one.get("sums", ())) if isinstance(one, Mapping) else 0 for one in measures]
    return kept[0] > 0 and len(set(kept)) == 1


def _enough(measure: Mapping[str, Any]) -> bool:
    """Whether a measure has enough units for an interval; its `over` begins with their number."""
    number = re.match(r"[\d,]+", measure.get("over", ""))
    units = int(number[0].replace(",", "")) if number else len(measure.get("sums", ()))
    return units >= FEWEST_UNITS


def _over_pooled_units(
    ours: Sequence[Any], theirs: Sequence[Any], names: tuple[str, ...]
) -> Estimate:
    """All seeds as one sample of the same units: sums and counts are added unit by unit."""

    def added(group: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        sums, counts = ([one[part] for one in group] for part in ("sums", "counts"))
        return np.sum(sums, axis=0), np.sum(counts, axis=0)

    above, below = added(ours)
    resampled = Resampled(np.arange(len(above)))
    if theirs:
        value, low, high = resampled.difference((above, below), added(theirs))
    else:
        value, low, high = resampled.interval(above, below, lambda mean: mean)
    if not _enough(ours[0]):
        low = high = None
    units = ours[0]["over"].partition(",")[0]
    over = f"{units}, all {len(ours)} seeds together{', paired' if theirs else ''}"
    return Estimate(value, low, high, over, names, len(ours), over_units=True)


def _over_seeds(values: Sequence[float], names: tuple[str, ...]) -> Estimate:
    from scipy.stats import t

    mean, count = float(np.mean(values)), len(values)
    half = float(t.ppf(0.975, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
    return Estimate(mean, mean - half, mean + half, f"{count} seeds", names, count)


def _clipped(estimate: Estimate, given: Iterable[float], value: Value) -> Estimate:
    """Clip an interval to the measure's range, unless one of the runs lies outside it."""
    if estimate.low is None or estimate.high is None:
        return estimate
    values = list(given)
    signed = "+" in value.form or min(values) < 0
    low = estimate.low if signed else max(estimate.low, 0.0)
    high = min(estimate.high, 1.0) if value.share and max(values) <= 1 else estimate.high
    return replace(estimate, low=low, high=high)


def outcome(expectation: Expectation, records: Records) -> str:
    """'holds', 'fails' or 'open'; 'missing' if there is no record."""
    measured = estimate(expectation.value, records)
    if measured is None:
        return "missing"
    low, high = measured.low, measured.high
    if low is None or high is None:
        if not expectation.value.counted:
            return "open"
        low = high = measured.value
    bound, width = expectation.bound, expectation.width
    match expectation.side:
        case "below":
            holds, fails = high < bound, low > bound
        case "above":
            holds, fails = low > bound, high < bound
        case "within":
            holds = bound - width < low and high < bound + width
            fails = high < bound - width or bound + width < low
    return "holds" if holds else "fails" if fails else "open"


def verdict(outcomes: Sequence[str], complete: bool = True, few: bool = False) -> str:
    """The verdict on a claim, from the outcomes of its expectations.

    A claim is incomplete until all its runs are done. With few seeds the verdict is worded weakly:
    another seed may change more than the interval over texts shows.
    """
    known = [outcome for outcome in outcomes if outcome != "missing"]
    if not known:
        return "not measured"
    if not complete:
        return "incomplete"
    if all(outcome == "holds" for outcome in outcomes):
        return FOR if few else "reproduced"
    # One decided expectation among many open ones decides nothing yet.
    for side, result, with_few in (
        ("holds", "partly reproduced", PARTLY_FOR),
        ("fails", "not reproduced", AGAINST),
    ):
        if 2 * outcomes.count(side) >= len(outcomes):
            return with_few if few else result
    return "undecided"
