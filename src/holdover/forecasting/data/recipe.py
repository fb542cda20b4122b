"""What a trained forecaster needs to read another file: columns, lengths, frequency and scaler.

The scaler brings each column of each series to mean 0 and standard deviation 1.
* It is fitted on the training rows only, so nothing later leaks into them.
* A column that is constant there is divided by 1.
* It is saved as plain numbers, which JSON holds exactly.
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
    ids: tuple[str, ...]  # series
    mean: np.ndarray  # [S, C] float64
    deviation: np.ndarray  # [S, C] float64, 1 if a column is constant
    constant: np.ndarray  # [S, C] bool

    @classmethod
    def fit(
        cls, columns: Sequence[str], ids: Sequence[str], training: Sequence[np.ndarray]
    ) -> "Scaler":
        """training: the training rows [T, C] of each series."""
        constant = np.stack([(rows == rows[:1]).all(0) for rows in training])
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.stack([rows.mean(0) for rows in training])
            deviation = np.stack([rows.std(0) for rows in training])
        # The mean of equal values may have a rounding error; the value itself has none.
        first = np.stack([rows[0] for rows in training])
        mean, deviation = np.where(constant, first, mean), np.where(constant, 1.0, deviation)
        if not (np.isfinite(mean).all() and np.isfinite(deviation).all()):
            bad = int(np.argmax(~np.isfinite(mean + deviation).all(0)))
            raise ValueError(
                f"The values of column {columns[bad]} are too large for a mean and a standard "
                "deviation: write them in another unit."
            )
        return cls(tuple(columns), tuple(ids), mean, deviation, constant)

    def scale(self, values: np.ndarray, series: int = 0) -> np.ndarray:
        return (values - self.mean[series]) / self.deviation[series]

    def restore(
        self, values: np.ndarray, columns: Sequence[str], series: int | np.ndarray = 0
    ) -> np.ndarray:
        """Scaled values [..., C] of `columns` in the units of the file.

        series: one index, or one for each entry of the first dimension.
        """
        places = self.places(columns)
        mean, deviation = self.mean[series][..., places], self.deviation[series][..., places]
        if np.ndim(series):
            expand = (slice(None), *[None] * (values.ndim - 2))
            mean, deviation = mean[expand], deviation[expand]
        return np.asarray(values, dtype=np.float64) * deviation + mean

    def places(self, columns: Sequence[str]) -> list[int]:
        return [self.columns.index(column) for column in columns]

    def notes(self) -> list[str]:
        notes = []
        for number, flags in enumerate(self.constant):
            named = ", ".join(np.array(self.columns)[flags].tolist())
            of = f" of series {self.ids[number]}" if self.ids[number] else ""
            if named:
                notes.append(f"constant in the training rows{of}, divided by 1: {named}")
        return notes

    def to_json(self) -> dict[str, Any]:
        return {
            "columns": list(self.columns),
            "ids": list(self.ids),
            "mean": self.mean.tolist(),
            "deviation": self.deviation.tolist(),
            "constant": self.constant.tolist(),
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Scaler":
        return cls(
            tuple(fields["columns"]),
            tuple(fields["ids"]),
            np.array(fields["mean"], dtype=np.float64),
            np.array(fields["deviation"], dtype=np.float64),
            np.array(fields["constant"], dtype=bool),
        )


@dataclass(frozen=True)
class Recipe:
    inputs: tuple[str, ...]  # columns read
    outputs: tuple[str, ...]  # columns forecast; all are inputs as well
    past: int
    ahead: int
    frequency: Frequency
    scaler: Scaler  # for the inputs

    @property
    def marks(self) -> int:
        """The number of time features of a row."""
        return len(feature_names(self.frequency))

    def scaled(self, table: Table) -> list[np.ndarray]:
        """The scaled inputs [T, I] float32 of each series."""
        places = [table.columns.index(column) for column in self.inputs]
        known = self.scaler.ids
        return [
            self.scaler.scale(series.values[:, places], known.index(series.id)).astype(np.float32)
            for series in table.series
        ]

    def check(self, table: Table) -> None:
        """Refuse a table that does not fit this forecaster."""
        # A forecast of one column from itself ignores further columns.
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
        # Few rows may fit several frequencies: five business days are also five days.
        fits = all(self.frequency.fits(series.times) for series in table.series)
        if table.frequency != self.frequency and not fits:
            raise ValueError(
                f"The rows of {table.name} are {table.frequency} apart, those the forecaster was "
                f"trained on {self.frequency}: bring the file to that frequency."
            )
        new = [series.id for series in table.series if series.id not in self.scaler.ids]
        if new:
            raise ValueError(
                f"{table.name} has the series {_some(new)}, on which the forecaster was not trained: it "
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
    def from_json(cls, fields: dict[str, Any]) -> "Recipe":
        return cls(
            tuple(fields["inputs"]),
            tuple(fields["outputs"]),
            fields["past"],
            fields["ahead"],
            Frequency.from_json(fields["frequency"]),
            Scaler.from_json(fields["scaler"]),
        )


def chosen_columns(
    table: Table, features: Features, target: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns to read, and the columns to forecast."""
    if target is not None and target not in table.columns:
        raise ValueError(
            f"{table.name} has no column {target} to forecast: it has {', '.join(table.columns)}; set "
            "--target to one of them."
        )
    if features == "M":
        return table.columns, table.columns
    target = target or table.target
    if target is None:
        raise ValueError(
            f"--features {features} forecasts one column of {table.name}: set --target to one of "
            f"{', '.join(table.columns)}."
        )
    # The target is the last input: forecasters find its past values there.
    others = [column for column in table.columns if column != target]
    return ((target,) if features == "S" else (*others, target)), (target,)


def _some(names: Sequence[str]) -> str:
    shown = [name or "(without a name)" for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
