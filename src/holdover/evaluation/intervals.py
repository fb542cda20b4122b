"""Percentile bootstrap of ratios of sums, over units that can be taken as independent.

* Tokens of one text depend on each other, so whole units are drawn: documents if there are enough of
  them, else blocks of consecutive windows of one document.
* A draw counts how often each unit was taken. The same draws serve every measure and every model, so
  a difference of two models on the same targets is paired.
* Numerator and denominator are summed per draw and divided once: a large unit weighs more.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# Below this many documents, the spread between documents says little about their population.
ENOUGH_DOCUMENTS = 20
# Entries of the table of draws processed at once, as float64 (16 MiB).
SLICE = 2**21
BOUNDS = (2.5, 97.5)

Transform = Callable[[Any], Any]
Interval = tuple[float, float | None, float | None]


def units_of(documents: np.ndarray, windows: np.ndarray, block: int = 20) -> tuple[np.ndarray, str]:
    """For each scored target the number of its unit (0, 1, ... without gaps), and the kind of unit."""
    documents, windows = np.asarray(documents), np.asarray(windows)
    if documents.ndim != 1 or documents.shape != windows.shape or documents.size == 0:
        raise ValueError(
            f"Units need one document and one window number for each scored target, got arrays of "
            f"shape {documents.shape} and {windows.shape}: pass two equally long, non-empty vectors."
        )
    if documents.min() < 0 or windows.min() < 0 or block < 1:
        raise ValueError(
            "Document and window numbers count from 0 and a block holds at least one window: "
            f"got {documents.min()}, {windows.min()} and a block of {block}."
        )
    by_document, count = _without_gaps(documents)
    if count >= ENOUGH_DOCUMENTS:
        return by_document, "documents"
    block_in_document = windows // block
    # A block never reaches into the next document; the last one of a document may be short.
    units, count = _without_gaps(by_document * (block_in_document.max() + 1) + block_in_document)
    if count < 2:
        return units, f"a single block of {block} windows: too little for an interval"
    return units, f"blocks of {block} windows"


class Resampled:
    """Draws of units with replacement, made once and shared by all measures."""

    def __init__(self, units: np.ndarray, draws: int = 2000, seed: int = 0):
        sizes = np.bincount(units)
        if sizes.size == 0 or not sizes.all() or draws < 1:
            raise ValueError(
                f"Resampling needs at least one draw and unit numbers 0, 1, ... without gaps, got "
                f"{draws} draws and {sizes.size} units of which {int((sizes == 0).sum())} are empty: "
                f"number the targets with units_of."
            )
        self.units = np.asarray(units)
        self.count = int(sizes.size)
        self._draws = list(_drawn(self.count, draws, seed))

    def per_unit(self, values: np.ndarray) -> np.ndarray:
        """Sums over each unit of one value for each target, as `interval` takes them."""
        return np.bincount(self.units, weights=values, minlength=self.count)

    def mean(self, sums: Any, counts: Any = None) -> dict[str, float | None]:
        """The mean of values with its 95 % bounds, from their sum in each unit; `counts` says how
        many values each unit has (1 by default)."""
        counts = np.ones(self.count) if counts is None else np.asarray(counts)
        value, low, high = self.interval(np.asarray(sums), counts, transform=lambda mean: mean)
        return {"value": value, "low": low, "high": high}

    def interval(
        self,
        numerator_per_unit: np.ndarray,
        denominator_per_unit: np.ndarray,
        transform: Transform = np.exp,
    ) -> Interval:
        """transform(sum / sum) and its 95 % bounds, which are None with fewer than two units."""
        return self._bounded(
            lambda above, below: transform(above / below), numerator_per_unit, denominator_per_unit
        )

    def difference(
        self, ours: tuple[np.ndarray, np.ndarray], its: tuple[np.ndarray, np.ndarray]
    ) -> Interval:
        """The difference of two ratios of sums over the same units, each with its own denominator."""
        return self._bounded(
            lambda above, its_above, its_below, below: above / below - its_above / its_below,
            *(ours[0], *its, ours[1]),
        )

    def _bounded(self, statistic: Callable[..., Any], *columns: np.ndarray) -> Interval:
        for column in columns:
            if np.shape(column) != (self.count,):
                raise ValueError(
                    f"Expected one sum for each of the {self.count} units, got an array of shape "
                    f"{np.shape(column)}: sum the targets of a unit with per_unit."
                )
        table = np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)
        totals = table.sum(axis=0)
        if not totals[-1] > 0:
            raise ValueError(
                f"The denominators of all units sum to {totals[-1]:g}: score at least one target."
            )
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value = float(statistic(*totals))
            if self.count < 2:
                return value, None, None
            sums = np.concatenate([taken.astype(np.float64) @ table for taken in self._draws])
            # A unit's denominator may be 0 (a block without words); a draw of only such units has no
            # value.
            sums = sums[sums[:, -1] > 0]
            values = statistic(*sums.T)
            low, high = np.percentile(values[~np.isnan(values)], BOUNDS)
        return value, float(low), float(high)


def _without_gaps(numbers: np.ndarray) -> tuple[np.ndarray, int]:
    """The same grouping numbered 0, 1, ... in the same order, without sorting the targets."""
    present = np.bincount(numbers) > 0
    return (np.cumsum(present) - 1)[numbers], int(present.sum())


def _drawn(count: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """[draws, units] how often each unit was taken, in parts, in the narrowest integer type."""
    random = np.random.default_rng(seed)
    rows = max(1, SLICE // count)
    for first in range(0, draws, rows):
        height = min(rows, draws - first)
        taken = random.integers(0, count, size=(height, count))
        taken += np.arange(height)[:, None] * count
        times = np.bincount(taken.ravel(), minlength=height * count).reshape(height, count)
        yield times.astype(np.min_scalar_type(times.max()))
