"""Beyond the end of a file: the last rows of every series, and the times to come."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .features import time_features
from .recipe import Recipe
from .sentences import counted
from .table import Table


@dataclass(frozen=True)
class Beyond:
    """What a forecaster reads to forecast what is not in the file, one row for each series."""

    values: Tensor  # [S, past, I] scaled
    marks: Tensor  # [S, past, F]
    future_marks: Tensor  # [S, ahead, F]
    times: np.ndarray  # [S, ahead] datetime64[us]
    ids: tuple[str, ...]
    recipe: Recipe

    def in_units(self, forecast: Tensor) -> np.ndarray:  # [S, ahead, O] float64
        """A forecast of these rows, scaled, in the units of the file."""
        found = forecast.detach().to("cpu", torch.float64).numpy()
        wanted = (len(self.ids), self.recipe.ahead, len(self.recipe.outputs))
        if found.shape != wanted:
            raise ValueError(f"A forecast of shape {wanted} was expected, got {found.shape}.")
        if not np.isfinite(found).all():
            series, step, column = np.argwhere(~np.isfinite(found))[0].tolist()
            of_series = f" of series {self.ids[series]}" if self.ids[series] else ""
            ahead = counted(step + 1, "step")
            raise ValueError(
                f"The forecast of {self.recipe.outputs[column]}{of_series} {ahead} ahead is "
                f"{found[series, step, column]}, not a number: the model's weights or the values it "
                "read are out of range."
            )
        known = self.recipe.scaler.ids
        return self.recipe.scaler.restore(
            found, self.recipe.outputs, np.array([known.index(name) for name in self.ids])
        )


def beyond(table: Table, recipe: Recipe) -> Beyond:
    recipe.check(table)
    for series in table.series:
        if len(series) < recipe.past:
            name = f"{table.name}, series {series.id}" if series.id else table.name
            raise ValueError(
                f"{name} has {counted(len(series), 'row')} where a forecast is made from past="
                f"{recipe.past}: give a longer file."
            )
    frequency = recipe.frequency
    scaled = [rows[-recipe.past :] for rows in recipe.scaled(table)]
    marks = [time_features(series.times[-recipe.past :], frequency) for series in table.series]
    times = [frequency.after(series.times[-1], recipe.ahead) for series in table.series]
    return Beyond(
        values=torch.from_numpy(np.stack(scaled)),
        marks=torch.from_numpy(np.stack(marks)),
        future_marks=torch.from_numpy(np.stack([time_features(t, frequency) for t in times])),
        times=np.stack(times),
        ids=tuple(series.id for series in table.series),
        recipe=recipe,
    )
