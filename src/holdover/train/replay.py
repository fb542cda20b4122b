"""A forecaster's step recorded once and replayed: a CUDA graph of its forward and backward.

A step of Informer is hundreds of small kernels. They take a GPU a few milliseconds, and Python several
times as long to start one by one. Replayed, they are the same kernels on the same memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..series import ForecastBatch

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
    given = (batch.values, batch.marks, batch.future_marks)
    # Recording reads the batch some times before: no random number is drawn by that, and no running
    # mean moves, so that a run which is continued is the one that was not interrupted.
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng([batch.values.device]):
        replayed: Any = torch.cuda.make_graphed_callables(
            _Forecasting(model).train(),
            tuple(value.clone() for value in given),
            # Not every weight has a part in every forecast (InformerConfig.mix).
            allow_unused_input=True,
        )
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    return replayed
