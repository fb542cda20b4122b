"""Values brought to mean 0 and deviation 1, each column of each series by its own training rows.

* Fitted on training rows alone: what comes later must not be known to them.
* A column that never changes there has no deviation to divide by; it is divided by 1.
* Two tables of plain numbers, so a record or a configuration can hold it exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Scaler:
    columns: tuple[str, ...]
    ids: tuple[str, ...]  # of the series
    mean: np.ndarray  # [S, C] float64
    deviation: np.ndarray  # [S, C] float64, 1 where a column is constant
    constant: np.ndarray  # [S, C] bool

    @classmethod
    def fit(
        cls, columns: Sequence[str], ids: Sequence[str], training: Sequence[np.ndarray]
    ) -> "Scaler":
        """training: for each series its training rows [T, C]."""
        constant = np.stack([(rows == rows[:1]).all(0) for rows in training])
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.stack([rows.mean(0) for rows in training])
            deviation = np.stack([rows.std(0) for rows in training])
        # A sum of equal values, divided, may be off by a rounding; the value itself is not.
        first = np.stack([rows[0] for rows in training])
        mean, deviation = np.where(constant, first, mean), np.where(constant, 1.0, deviation)
        if not (np.isfinite(mean).all() and np.isfinite(deviation).all()):
            bad = int(np.argmax(~np.isfinite(mean + deviation).all(0)))
            raise ValueError(
                f"Column {columns[bad]} has values too large to take their mean and deviation: write "
                "them in another unit."
            )
        return cls(tuple(columns), tuple(ids), mean, deviation, constant)

    def scale(self, values: np.ndarray, series: int = 0) -> np.ndarray:
        return (values - self.mean[series]) / self.deviation[series]

    def restore(
        self, values: np.ndarray, columns: Sequence[str], series: int | np.ndarray = 0
    ) -> np.ndarray:
        """Scaled values [..., C of `columns`] in their own units.

        series: one number, or one for each entry of the first dimension.
        """
        places = self.places(columns)
        mean, deviation = self.mean[series][..., places], self.deviation[series][..., places]
        if np.ndim(series):
            between = (slice(None), *[None] * (values.ndim - 2))
            mean, deviation = mean[between], deviation[between]
        return np.asarray(values, dtype=np.float64) * deviation + mean

    def places(self, columns: Sequence[str]) -> list[int]:
        return [self.columns.index(column) for column in columns]

    def notes(self) -> list[str]:
        found = []
        for number, flags in enumerate(self.constant):
            named = ", ".join(np.array(self.columns)[flags].tolist())
            of = f" of series {self.ids[number]}" if self.ids[number] else ""
            if named:
                found.append(f"constant in the training rows{of}, divided by 1: {named}")
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": list(self.columns),
            "ids": list(self.ids),
            "mean": self.mean.tolist(),
            "deviation": self.deviation.tolist(),
            "constant": self.constant.tolist(),
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Scaler":
        return cls(
            tuple(found["columns"]),
            tuple(found["ids"]),
            np.array(found["mean"], dtype=np.float64),
            np.array(found["deviation"], dtype=np.float64),
            np.array(found["constant"], dtype=bool),
        )
