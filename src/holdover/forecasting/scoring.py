"""Errors of a forecaster over all windows of a part: sums, divided once at the end.

* Every window is scored exactly once. A result that misses one is refused.
* The papers report errors of scaled values. In original units each error is multiplied by the deviation
  of its column and series, so a mean over columns mixes units.
* Neighbouring windows share most of their rows. Intervals therefore resample blocks of consecutive
  windows (as many as the forecast or the season has steps, whichever is more), or whole series if there
  are many. The first window of the validation or test part forecasts the part's first row, whatever
  `past` is. So models with different `past` have the same blocks and can be paired.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runs.processes import all_gather_objects, own_share
from .data.cells import shown_time
from .data.recipe import Recipe
from .data.windows import ForecastBatch, Windows

# With this many series or more, intervals resample whole series.
ENOUGH_SERIES = 20


class ForecastErrors:
    def __init__(self, windows: Windows, recipe: Recipe) -> None:
        self.windows, self.recipe = windows, recipe
        self.block = max(recipe.ahead, recipe.frequency.season)
        shape = (recipe.ahead, len(recipe.outputs))
        # [scaled or original, squared or absolute, ahead, O]
        self._sums = np.zeros((2, 2, *shape))
        self._units = self._numbered()
        # [squared or absolute, units], scaled
        self._per_unit = np.zeros((2, int(self._units.max()) + 1))
        self._done = np.zeros(len(windows), bool)
        scaler = recipe.scaler
        known = [scaler.ids.index(series.id) for series in windows.rows.series]
        self._deviation = scaler.deviation[known][:, scaler.places(recipe.outputs)]  # [S, O]

    def add(self, forecast: Tensor, batch: ForecastBatch) -> None:
        """forecast: [B, ahead, O] scaled, for a batch of these windows."""
        if forecast.shape != batch.future.shape:
            raise ValueError(
                f"The forecast has the shape {tuple(forecast.shape)}, but the future of the batch has "
                f"{tuple(batch.future.shape)}: give one value per window, step and column."
            )
        values = forecast.detach().to("cpu", torch.float64).numpy()
        self._refuse_nonfinite(values, batch)
        if self._done[batch.numbers].any() or len(np.unique(batch.numbers)) < len(batch.numbers):
            raise ValueError("A window was scored twice: give every batch of the windows once.")
        self._done[batch.numbers] = True
        error = values - batch.future.to("cpu", torch.float64).numpy()
        original = error * self._deviation[batch.series][:, None]
        for place, errors in enumerate((error, original)):
            self._sums[place, 0] += (errors**2).sum(0)
            self._sums[place, 1] += np.abs(errors).sum(0)
        units = self._units[batch.numbers]
        np.add.at(self._per_unit[0], units, (error**2).sum((1, 2)))
        np.add.at(self._per_unit[1], units, np.abs(error).sum((1, 2)))

    def sums(self) -> list[np.ndarray]:
        """The sums so far, to be added to those of other processes."""
        return [self._sums, self._per_unit, self._done.astype(int)]

    def take(self, sums: list[np.ndarray]) -> None:
        """Replace the sums by those over all processes."""
        self._sums, self._per_unit, done = sums
        assert done.max(initial=0) <= 1, "a window was scored twice"
        self._done = done.astype(bool)

    def result(self) -> dict[str, Any]:
        """Means over all windows as JSON: overall, by column, by step; and the sums of each unit."""
        windows = len(self._done)
        if not self._done.all():
            raise ValueError(
                f"{int(self._done.sum()):,} of {windows:,} windows were scored: give every batch, "
                "including the last one, which may be short."
            )
        targets = self._sums[0, 0].size
        many = self._whole_series()
        return {
            "windows": windows,
            "targets": windows * targets,
            "scaled": self._means(self._sums[0]),
            "original": self._means(self._sums[1]),
            "interval_over": "series" if many else f"blocks of {self.block} windows",
            "units": self._per_unit.shape[1],
            "per_unit": {
                "squared": self._per_unit[0].tolist(),
                "absolute": self._per_unit[1].tolist(),
                "targets": (np.bincount(self._units) * targets).tolist(),
            },
        }

    def _means(self, sums: np.ndarray) -> dict[str, Any]:
        windows, (_, ahead, outputs) = len(self._done), sums.shape
        squared, absolute = sums
        by_column = np.stack([squared.sum(0), absolute.sum(0)], axis=1) / (windows * ahead)
        return {
            "mse": float(squared.sum() / (windows * ahead * outputs)),
            "mae": float(absolute.sum() / (windows * ahead * outputs)),
            "by_column": {
                column: {"mse": float(mse), "mae": float(mae)}
                for column, (mse, mae) in zip(self.recipe.outputs, by_column, strict=True)
            },
            "by_step": {
                "mse": (squared.sum(1) / (windows * outputs)).tolist(),
                "mae": (absolute.sum(1) / (windows * outputs)).tolist(),
            },
        }

    def _whole_series(self) -> bool:
        return len(self.windows.spans) >= ENOUGH_SERIES

    def _numbered(self) -> np.ndarray:
        """The unit of each window, numbered without gaps."""
        numbers = np.arange(len(self.windows))
        series = self.windows.series_of(numbers)
        if self._whole_series():
            return series
        blocks = (numbers - self.windows.bounds[series]) // self.block
        new = (np.diff(series, prepend=-1) != 0) | (np.diff(blocks, prepend=-1) != 0)
        return np.cumsum(new) - 1

    def _refuse_nonfinite(self, values: np.ndarray, batch: ForecastBatch) -> None:
        if np.isfinite(values).all():
            return
        row, step, column = np.argwhere(~np.isfinite(values))[0].tolist()
        place = self.windows.place(int(batch.numbers[row]))
        of_series = f" of series {place.series}" if place.series else ""
        raise ValueError(
            f"The forecast{of_series} from {shown_time(place.time)} on (line {place.line}) is "
            f"{values[row, step, column]} for {self.recipe.outputs[column]} at step {step + 1}: only "
            "numbers can be scored; check the loss and the learning rate of the training."
        )


@torch.no_grad()
def score_forecasts(
    model: Any,
    windows: Windows,
    recipe: Recipe,
    *,
    rows: int,
    device: torch.device,
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:
    """The errors of a forecaster in evaluation mode (`ForecastErrors.result`); several processes share
    the windows."""
    errors = ForecastErrors(windows, recipe)

    def read() -> list[np.ndarray]:
        for batch in windows.batches(rows, share=own_share()):
            if not batch.idle:
                batch = batch.to(device)
                errors.add(model.forecast(batch.values, batch.marks, batch.future_marks), batch)
                advance(len(batch.numbers))
        return errors.sums()

    errors.take([np.sum(parts, axis=0) for parts in zip(*all_gather_objects(read), strict=True)])
    return errors.result()
