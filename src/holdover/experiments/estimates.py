"""What records say of a value: a mean over seeds and its interval, or one run and its own.

* Three seeds or more: the mean, with Student's t over seeds, cut where the measure ends (shares at 1).
  That says what another seed would change, on the same text.
* One seed or two: the mean, with an interval over units of the text. That says what another text of the
  kind would change, with the same weights. (Student's t over two is so wide that a second seed would
  undo what the first had decided, however well they agree.)
* Of fewer than eight units no interval is made: drawn again, two blocks give the smaller and the larger
  of them, whatever the rest of such text is like.
* Seeds that train nothing anew and draw from the same few units (`over_units`) are read as one.
* Differences are paired: by seed, or with fewer unit by unit.
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

# For an interval over seeds, and over units of text.
FEWEST_SEEDS = 3
FEWEST_UNITS = 8
# Verdicts of fewer seeds than that.
FOR, PARTLY_FOR, AGAINST = "points for it", "points partly for it", "points against it"


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float | None
    high: float | None
    over: str
    """What the interval is over."""
    sources: tuple[str, ...]
    """Names of the runs."""
    seeds: int
    """How many the mean is of."""
    over_units: bool = False
    """Whether the interval, if there is one, says what another text would change, not another seed."""


def estimate(value: Value, records: Records) -> Estimate | None:
    """None where no record has it."""
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
        told = f"the largest of {len(measures)} seeds"
        return Estimate(max(map(value_of, measures)), None, None, told, names, len(measures))
    if value.over_units and _of_the_same_units(measures):
        return _cut(_over_pooled_units(measures, [], names), map(value_of, measures), value)
    if len(measures) >= FEWEST_SEEDS:
        values = [value_of(measure) for measure in measures]
        return _cut(_over_seeds(values, names), values, value)
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
    """The mean of few runs above that of others, if any; with an interval where all of them were scored
    on the same units."""
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
    """As many of them in each, whatever was counted there."""
    kept = [len(one.get("sums", ())) if isinstance(one, Mapping) else 0 for one in measures]
    return kept[0] > 0 and len(set(kept)) == 1


def _enough(measure: Mapping[str, Any]) -> bool:
    """Whether there are units enough for an interval: as many as it says it is over."""
    said = re.match(r"[\d,]+", measure.get("over", ""))
    units = int(said[0].replace(",", "")) if said else len(measure.get("sums", ()))
    return units >= FEWEST_UNITS


def _over_pooled_units(
    ours: Sequence[Any], theirs: Sequence[Any], names: tuple[str, ...]
) -> Estimate:
    """Of all seeds as one sample of the same units, in each of which they counted what they drew."""

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
    told = ours[0]["over"].partition(",")[0]
    over = f"{told}, all {len(ours)} seeds together{', paired' if theirs else ''}"
    return Estimate(value, low, high, over, names, len(ours), over_units=True)


def _over_seeds(values: Sequence[float], names: tuple[str, ...]) -> Estimate:
    from scipy.stats import t

    mean, count = float(np.mean(values)), len(values)
    half = float(t.ppf(0.975, count - 1) * np.std(values, ddof=1) / math.sqrt(count))
    return Estimate(mean, mean - half, mean + half, f"{count} seeds", names, count)


def _cut(found: Estimate, given: Iterable[float], value: Value) -> Estimate:
    """What a measure cannot be need not be covered; what it was in one of the runs, it can be."""
    if found.low is None or found.high is None:
        return found
    values = list(given)
    signed = "+" in value.form or min(values) < 0
    low = found.low if signed else max(found.low, 0.0)
    high = min(found.high, 1.0) if value.share and max(values) <= 1 else found.high
    return replace(found, low=low, high=high)


def outcome(expectation: Expectation, records: Records) -> str:
    """holds, fails or open; missing where there is no record."""
    found = estimate(expectation.value, records)
    if found is None:
        return "missing"
    low, high = found.low, found.high
    if low is None or high is None:
        if not expectation.value.counted:
            return "open"
        low = high = found.value
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
    """Of a claim, by its expectations; none is given before all the runs it needs were made, and of few
    seeds none that sounds like the last word: another seed may change more than the text's interval
    says."""
    known = [outcome for outcome in outcomes if outcome != "missing"]
    if not known:
        return "not measured"
    if not complete:
        return "incomplete"
    if all(outcome == "holds" for outcome in outcomes):
        return FOR if few else "reproduced"
    # One among many that are open says nothing yet, whichever side it is on.
    for side, said, of_few in (
        ("holds", "partly reproduced", PARTLY_FOR),
        ("fails", "not reproduced", AGAINST),
    ):
        if 2 * outcomes.count(side) >= len(outcomes):
            return of_few if few else said
    return "undecided"
