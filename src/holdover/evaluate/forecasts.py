"""Forecasts of a part's windows, every one of them scored once."""

from collections.abc import Callable
from typing import Any

import torch

from ..series import ForecastErrors, Recipe, Windows


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
    """Means and sums of the errors (`ForecastErrors.result`) of a forecaster in evaluation mode."""
    errors = ForecastErrors(windows, recipe)
    for batch in windows.batches(rows):
        batch = batch.to(device)
        errors.add(model.forecast(batch.values, batch.marks, batch.future_marks), batch)
        advance(len(batch.numbers))
    return errors.result()
