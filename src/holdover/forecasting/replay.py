"""Forecasts of a batch, recorded once as a CUDA graph and replayed (training/replay.py)."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..training.replay import check_replayed, record_call
from .data.windows import ForecastBatch

Forecast = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Forecasting(nn.Module):
    """`forecast` as the call of a module: of a module's call torch records the gradients of weights."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: Tensor, marks: Tensor, future_marks: Tensor) -> Tensor:
        return self.model.forecast(values, marks, future_marks)


def record(model: Any, batch: ForecastBatch) -> Forecast:
    """What forecasts batches of this one's shape, in training."""
    given = batch.values, batch.marks, batch.future_marks
    replayed = record_call(_Forecasting(model), given)

    def loss(forecast: Forecast) -> Tensor:
        return (forecast(*given).float() - batch.future).square().mean()

    check_replayed(model, lambda: loss(replayed), lambda: loss(model.forecast))
    return replayed
