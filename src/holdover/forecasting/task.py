"""Forecasting as a task of the training loop: batches of windows, squared error of scaled forecasts.

On a GPU the step is recorded as a CUDA graph and replayed (training/replay.py).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..runs.processes import Share
from ..state import State
from ..text.prefetch import prefetch
from ..training.replay import check_replayed, record_call
from .data.prepare import Prepared
from .data.windows import ForecastBatch
from .options import ForecastOptions
from .scoring import score_forecasts

Forecast = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Forecasting(nn.Module):
    """`forecast` as the call of a module: torch records gradients of weights only for such calls."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: Tensor, marks: Tensor, future_marks: Tensor) -> Tensor:
        return self.model.forecast(values, marks, future_marks)


def record(model: Any, batch: ForecastBatch) -> Forecast:
    """A recorded `forecast` for batches of this shape, in training."""
    given = batch.values, batch.marks, batch.future_marks
    replayed = record_call(_Forecasting(model), given)

    def loss(forecast: Forecast) -> Tensor:
        return (forecast(*given).float() - batch.future).square().mean()

    check_replayed(model, lambda: loss(replayed), lambda: loss(model.forecast))
    return replayed


# Windows per validation batch on a GPU, which smaller batches leave idle. Forecasts do not depend on it.
VALIDATED_AT_ONCE = 256


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
        self.replayed: Forecast | None = None

    def record(self, model: Any) -> None:
        """Record the step if it can be replayed. No batch is prefetched yet: no other thread may
        allocate memory on the device meanwhile."""
        options = self.options
        # Gradients of several batches would be summed in memory that a replay overwrites; gradients
        # of several processes are summed by hooks, which a replay does not call.
        alone = options.accumulate == 1 and self.share.of == 1
        if options.replay and alone and self.device.type == "cuda":
            batch = next(iter(self.prepared.train.batches(options.rows))).to(self.device)
            self.replayed = record(model, batch)

    def batches(self, epoch: int, start: int) -> Iterator[ForecastBatch]:
        options, windows = self.options, self.prepared.train
        if options.order == "sequential":
            batches = windows.batches(options.rows, start, self.share)
        else:
            batches = windows.shuffled(options.rows, options.seed, epoch, start, self.share)
        return prefetch(batches, self.device)

    def length(self, epoch: int) -> int:
        return self.prepared.train.count_batches(self.options.rows)

    def tokens(self) -> int:
        """Rows that an epoch reads, counted in every window."""
        return len(self.prepared.train) * self.prepared.train.past

    def loss(
        self, model: Any, batch: ForecastBatch, carried: State | None, count: int
    ) -> tuple[Tensor, State | None]:
        given = batch.values, batch.marks, batch.future_marks
        if len(batch.values) != self.options.rows:
            # An epoch's last batch may be smaller than the compiled and recorded one.
            with model.uncompiled():
                forecast = model.forecast(*given)
        else:
            forecast = (self.replayed or model.forecast)(*given)
        return (forecast.float() - batch.future).square().sum() / count, None

    def validate(self, model: Any) -> dict[str, float]:
        rows = self.options.rows
        errors = score_forecasts(
            model,
            self.prepared.valid,
            self.prepared.recipe,
            rows=max(rows, VALIDATED_AT_ONCE) if self.device.type == "cuda" else rows,
            device=self.device,
        )["scaled"]
        return {"loss": errors["mse"], "mae": errors["mae"]}

    def alarm(self, model: Any, measures: dict[str, float]) -> str | None:
        return None
