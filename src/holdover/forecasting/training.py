"""holdover forecast train: from settings to a forecaster in a folder, begun or continued."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from torch import Tensor

from ..runs.models import RUN
from ..runs.processes import own_share, rank0_broadcast, rank0_first
from ..storage import write_atomically
from ..training.checkpoint import damaged
from ..training.compile_checks import check_gradients
from ..training.progress import TrainProgress
from ..training.setup import (
    about_run,
    build_loop,
    continue_loop,
    engine_of,
    looking,
    prepare_folder,
    read_about,
    run_to_end,
)
from .data.named import open_table
from .data.prepare import Prepared, prepare
from .folder import build_forecaster, is_trained, open_forecaster, save_forecaster
from .options import ForecastOptions
from .task import Forecasting


def train_forecaster(
    options: ForecastOptions, *, resume: bool = False, console: Console | None = None
) -> TrainProgress:
    """Train a forecaster; returns how far it came."""
    if resume and not is_trained(options.model):
        raise ValueError(f"{options.model} learns nothing to continue: leave --resume out.")
    if (options.output / "config.json").exists():
        raise ValueError(f"{options.output} holds a forecaster already: give another --output.")
    with engine_of(options, console) as (accelerator, console):
        return _train(options, resume, accelerator, console)


def _train(
    options: ForecastOptions, resume: bool, accelerator: Accelerator, console: Console
) -> TrainProgress:
    checkpoint = prepare_folder(options, resume)
    prepared = rank0_first(lambda: prepare(open_table(options), options))
    if resume:
        _check_same_series(read_about(options.output)["data"], prepared.about)
    torch.manual_seed(options.seed)
    model = _build_model(options, prepared, checkpoint)
    _show_start(console, options, model, prepared)
    if not is_trained(options.model):
        return rank0_broadcast(lambda: _save_untrained(options, model, prepared, console))
    # The same dropout for models that differ in how much drawing their weights took.
    torch.manual_seed(options.seed)
    model.to(accelerator.device)

    def save(folder: Path, weights: dict[str, Tensor] | None) -> None:
        assert weights is None, "a forecaster is not sharded"
        save_forecaster(folder, model, prepared.recipe)

    task = Forecasting(prepared, options, accelerator.device, own_share())
    if options.compile:
        model.compile_reading()
    look = looking(options, partial(check_gradients, model, task, accelerator, drawn_alike=True))
    loop = build_loop(options, model, task, prepared.about, save, accelerator, console, "rows")
    loop.look = look
    # Behind the loop's beginning, which puts the precision around the model's forward.
    task.record(model)
    continue_loop(loop, checkpoint, resume, console)
    return run_to_end(loop, console)


def _build_model(options: ForecastOptions, prepared: Prepared, checkpoint: Path | None) -> Any:
    if checkpoint is None:
        return build_forecaster(options.model, prepared.recipe, options.shape, options.label_len)
    try:
        return open_forecaster(checkpoint).model
    except ValueError as error:
        raise damaged(checkpoint, error) from error


def _check_same_series(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on in other series: a window's number would be another window there."""
    if before.get("sha256") != now["sha256"]:
        raise ValueError(
            f"The content of {now['data']} has changed since this run began: give the file it began "
            "with, or another --output without --resume."
        )


def _save_untrained(
    options: ForecastOptions, model: Any, prepared: Prepared, console: Console
) -> TrainProgress:
    save_forecaster(options.output, model, prepared.recipe)
    about = json.dumps(about_run(options, prepared.about), indent=2)
    write_atomically(options.output / RUN, about.encode())
    console.print(
        f"Done: {options.model} has nothing to learn.\nModel: {options.output}", soft_wrap=True
    )
    return TrainProgress(finished="there was nothing to learn")


def _show_start(console: Console, options: ForecastOptions, model: Any, prepared: Prepared) -> None:
    recipe, windows = prepared.recipe, prepared.about["windows"]
    parameters = sum(weight.numel() for weight in model.parameters())
    console.print(
        f"{options.model}: {parameters:,} parameters; reads {recipe.past} rows of "
        f"{len(recipe.inputs)} columns and forecasts {recipe.ahead} of {len(recipe.outputs)}, "
        f"{recipe.frequency} apart.\n"
        f"{prepared.about['data']}, split {prepared.about['split']}: {windows['train']:,} windows to "
        f"learn from, {windows['valid']:,} to validate on, {windows['test']:,} for the test.",
        highlight=False,
        soft_wrap=True,
    )
    for note in prepared.about["notes"]:
        console.print(f"Note: {note}.", highlight=False, soft_wrap=True)
