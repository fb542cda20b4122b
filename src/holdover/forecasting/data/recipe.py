"""Values brought to mean 0 and deviation 1, each column of each series by its own training rows.

* Fitted on training rows alone: what comes later must not be known to them.
* A column that never changes there has no deviation to divide by; it is divided by 1.
* Two tables of plain numbers, so a record or a configuration can hold it exactly.

Recipe: what a trained forecaster must know to read another file and to forecast in real units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .frequency import Frequency, feature_names
from .options import Features
from .table import Table


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


@dataclass(frozen=True)
class Recipe:
    inputs: tuple[str, ...]  # columns that are read
    outputs: tuple[str, ...]  # columns that are forecast, all of them among the inputs
    past: int
    ahead: int
    frequency: Frequency
    scaler: Scaler  # of the inputs

    @property
    def marks(self) -> int:
        """Time features of a row."""
        return len(feature_names(self.frequency))

    def scaled(self, table: Table) -> list[np.ndarray]:
        """For each series the inputs, scaled [T, I] float32."""
        places = [table.columns.index(column) for column in self.inputs]
        known = self.scaler.ids
        return [
            self.scaler.scale(series.values[:, places], known.index(series.id)).astype(np.float32)
            for series in table.series
        ]

    def check(self, table: Table) -> None:
        """Refuse a table that this forecaster was not made for."""
        # A forecast of one column from itself does not mind others beside it.
        one = len(self.inputs) == 1
        fits = (
            set(self.inputs) <= set(table.columns)
            if one
            else set(self.inputs) == set(table.columns)
        )
        if not fits:
            raise ValueError(
                f"The columns of {table.name} do not match the forecaster's: the file has "
                f"{', '.join(table.columns)}, the forecaster reads {', '.join(self.inputs)}; give the "
                "file those columns."
            )
        # A few rows may fit several frequencies: five business days are also five days.
        fits = all(self.frequency.fits(series.times) for series in table.series)
        if table.frequency != self.frequency and not fits:
            raise ValueError(
                f"The rows of {table.name} are {table.frequency} apart, those the forecaster was "
                f"trained on {self.frequency}: bring the file to that frequency."
            )
        new = [series.id for series in table.series if series.id not in self.scaler.ids]
        if new:
            raise ValueError(
                f"{table.name} has the series {_some(new)}, whose scale the forecaster has not seen: it "
                f"knows {_some(self.scaler.ids)}; leave the others out, or train on them."
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "past": self.past,
            "ahead": self.ahead,
            "frequency": self.frequency.to_json(),
            "scaler": self.scaler.to_json(),
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Recipe":
        return cls(
            tuple(found["inputs"]),
            tuple(found["outputs"]),
            found["past"],
            found["ahead"],
            Frequency.from_json(found["frequency"]),
            Scaler.from_json(found["scaler"]),
        )


def chosen_columns(
    table: Table, features: Features, target: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns that are read, and columns that are forecast."""
    if target is not None and target not in table.columns:
        raise ValueError(
            f"{table.name} has no column {target} to forecast: it has {', '.join(table.columns)}; set "
            "target to one of them."
        )
    if features == "M":
        return table.columns, table.columns
    target = target or table.target
    if target is None:
        raise ValueError(
            f"features={features} forecasts one column of {table.name}: set target to one of "
            f"{', '.join(table.columns)}."
        )
    # What is forecast stands last among what is read: that is how forecasters find its past.
    others = [column for column in table.columns if column != target]
    return ((target,) if features == "S" else (*others, target)), (target,)


def _some(names: Sequence[str]) -> str:
    shown = [name or "(without a name)" for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
