"""Recipe: what a trained forecaster must know to read another file and to forecast in real units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .features import feature_names
from .frequency import Frequency
from .options import Features
from .scaler import Scaler
from .table import Table


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
