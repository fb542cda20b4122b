"""Forecasting as a task of the loop: windows of series, squared error of the scaled forecast."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..data.prefetch import prefetch
from ..evaluate.forecasts import score_forecasts
from ..processes import Share
from ..series import ForecastBatch, Prepared
from ..state import State
from .forecast_options import ForecastOptions


class Forecasting:
    decides = "loss"

    def __init__(
        self,
        prepared: Prepared,
        options: ForecastOptions,
        device: torch.device,
        share: Share = Share(),
    ) -> None:
        self.prepared, self.options = prepared, options
        self.device, self.share = device, share

    def batches(self, epoch: int, start: int) -> Iterator[ForecastBatch]:
        options, windows = self.options, self.prepared.train
        if options.order == "sequential":
            found = windows.batches(options.rows, start, self.share)
        else:
            found = windows.shuffled(options.rows, options.seed, epoch, start, self.share)
        return prefetch(found, self.device)

    def length(self, epoch: int) -> int:
        return self.prepared.train.count_batches(self.options.rows)

    def tokens(self) -> int:
        """Rows that are read: those of every window."""
        return len(self.prepared.train) * self.prepared.train.past

    def loss(
        self, model: Any, batch: ForecastBatch, carried: State | None, count: int
    ) -> tuple[Tensor, State | None]:
        forecast = model.forecast(batch.values, batch.marks, batch.future_marks)
        return (forecast.float() - batch.future).square().sum() / count, None

    def validate(self, model: Any) -> dict[str, float]:
        found = score_forecasts(
            model,
            self.prepared.valid,
            self.prepared.recipe,
            rows=self.options.rows,
            device=self.device,
        )["scaled"]
        return {"loss": found["mse"], "mae": found["mae"]}

    def alarm(self, model: Any, found: dict[str, float]) -> str | None:
        return None
