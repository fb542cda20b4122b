"""Forecasts of a part's windows, every one of them scored once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..runs.processes import all_gather_objects, own_share
from .data.metrics import ForecastErrors
from .data.recipe import Recipe
from .data.windows import Windows


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
    """Means and sums of the errors (`ForecastErrors.result`) of a forecaster in evaluation mode; several
    processes read a share each."""
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
