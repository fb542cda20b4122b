"""holdover forecast train: train a forecaster, from the beginning or from the last checkpoint."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from ..runs.processes import Share
from ..training.progress import TrainProgress
from ..training.setup import Application
from ..training.setup import train as train_application
from .data.named import open_table
from .data.prepare import Prepared, prepare
from .folder import build_forecaster, is_trained, open_forecaster, save_forecaster
from .options import ForecastOptions
from .task import Forecasting


def train_forecaster(
    options: ForecastOptions, *, resume: bool = False, console: Console | None = None
) -> TrainProgress:
    """Train a forecaster; returns the progress of the run."""
    if resume and not is_trained(options.model):
        raise ValueError(f"{options.model} has nothing to learn: leave --resume out.")
    if (options.output / "config.json").exists():
        raise ValueError(f"{options.output} holds a forecaster already: give another --output.")
    return train_application(ForecastTraining(options), resume=resume, console=console)


class ForecastTraining(Application):
    """A forecaster on the series of a file."""

    options: ForecastOptions
    prepared: Prepared
    unit = "rows"
    same_dropout_compiled = True

    def __init__(self, options: ForecastOptions) -> None:
        super().__init__(options)
        self.learns = is_trained(options.model)

    def open_data(self, console: Console) -> dict[str, Any]:
        self.prepared = prepare(open_table(self.options), self.options)
        return self.prepared.about

    def checksums(self, data: dict[str, Any]) -> dict[str, str | None]:
        return {f"content of {data['data']}": data["sha256"]}

    def build_model(self, checkpoint: Path | None) -> Any:
        options = self.options
        if checkpoint is not None:
            return open_forecaster(checkpoint).model
        return build_forecaster(
            options.model, self.prepared.recipe, options.shape, options.label_len
        )

    def make_task(self, model: Any, device: torch.device, share: Share) -> Forecasting:
        return Forecasting(self.prepared, self.options, device, share)

    def describe(self, model: Any, task: Forecasting) -> str:
        recipe, about = self.prepared.recipe, self.prepared.about
        windows = about["windows"]
        parameters = sum(weight.numel() for weight in model.parameters())
        lines = [
            f"{self.options.model}: {parameters:,} parameters; reads {recipe.past} rows of "
            f"{len(recipe.inputs)} columns and forecasts {recipe.ahead} of {len(recipe.outputs)}, "
            f"{recipe.frequency} apart.",
            f"{about['data']}, split {about['split']}: {windows['train']:,} windows to learn from, "
            f"{windows['valid']:,} to validate on, {windows['test']:,} for the test.",
        ]
        return "\n".join([*lines, *(f"Note: {note}." for note in about["notes"])])

    def compile(self, model: Any) -> None:
        model.compile_reading()

    def save(self, folder: Path, model: Any, weights: dict[str, Tensor] | None) -> None:
        assert weights is None, "a forecaster is not sharded"
        save_forecaster(folder, model, self.prepared.recipe)
