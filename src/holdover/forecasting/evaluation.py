"""holdover forecast eval: a forecaster and those beside it on the same windows."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..evaluation.cost import PeakMemory
from ..evaluation.intervals import Resampled
from ..evaluation.progress import progress
from ..runs.provenance import (
    choose_device,
    fresh_name,
    make_folder,
    provenance,
    redact_paths,
    shown_name,
    write_record,
)
from ..runs.settings import as_dict
from ..storage import EVALUATION, VERSION_FIELD
from .data.named import open_table
from .data.options import SeriesOptions
from .data.prepare import Prepared, prepare
from .data.recipe import Recipe
from .data.table import Table
from .eval_options import ForecastEvalOptions, with_trained_data
from .eval_report import show
from .figures import error_by_step
from .folder import SavedForecaster, build_forecaster, open_forecaster
from .scoring import score_forecasts

RECORD = "forecast_eval.json"
MEASURES = {"mse": "squared", "mae": "absolute"}


@dataclass(frozen=True)
class Contender:
    name: str
    kind: str
    model: Any
    prepared: Prepared


def evaluate_forecaster(
    options: ForecastEvalOptions, console: Console | None = None
) -> dict[str, Any]:
    """Score every window of a part, show the table, write record and plots; returns the record."""
    console = console or Console(highlight=False)
    make_folder(options.output)
    device = choose_device(options.device)
    saved = open_forecaster(options.model)
    table = open_table(with_trained_data(options, saved))
    split = options.split or _trained_split(saved)
    prepared = prepare(table, SeriesOptions(split=split), saved.recipe)
    notes = _notes(saved, prepared, options)
    own = Contender(shown_name(options.model), saved.kind, saved.model, prepared)
    contenders = [own, *_others(options, own, table, split)]
    naive, missing = _naive(own, table, split)
    contenders += naive
    rows = [_row(contender, options, device, console) for contender in contenders]
    record = {
        "record": "forecast evaluation",
        VERSION_FIELD: EVALUATION.version,
        "model": {
            "name": own.name,
            "kind": own.kind,
            "config": saved.model.config.to_diff_dict(),
            "training": _training(saved),
        },
        "data": {**prepared.about, "part": options.part},
        "notes": [*prepared.about["notes"], *notes, *missing],
        "options": redact_paths(as_dict(options)),
        "rows": rows,
        "differences": [_difference(rows[0], row, options) for row in rows[1:]],
        "provenance": provenance(device),
    }
    write_record(options.output / RECORD, record)
    show(record, console)
    written = "Record"
    if options.plots:
        error_by_step(options.output / "error_by_step", {row["name"]: row for row in rows})
        written = "Record and plots"
    console.print(f"{written}: {options.output}", soft_wrap=True)
    return record


def _trained_split(saved: SavedForecaster) -> str | None:
    return None if saved.run is None else saved.run["data"]["split"]


def _training(saved: SavedForecaster) -> dict[str, Any] | None:
    if saved.run is None:
        return None
    return {
        "options": redact_paths(saved.run["options"]),
        "data": saved.run["data"]["data"],
        "sha256": saved.run["data"]["sha256"],
        "provenance": saved.run["provenance"],
    }


def _notes(saved: SavedForecaster, prepared: Prepared, options: ForecastEvalOptions) -> list[str]:
    """What a reader must know of where the forecaster has been."""
    if saved.run is None or saved.run["data"]["sha256"] != prepared.about["sha256"]:
        return []
    if options.part == "train":
        return ["the forecaster was trained on these very windows"]
    if saved.run["data"]["split"] != prepared.about["split"]:
        return [
            f"the forecaster was trained on this file split {saved.run['data']['split']}: it may have "
            "seen rows that are scored here"
        ]
    return []


def _others(
    options: ForecastEvalOptions, own: Contender, table: Table, split: str | None
) -> Iterator[Contender]:
    """The forecasters that were named, each with its own past and the same targets."""
    taken = {own.name, "repeat", "seasonal"}
    for given in options.against:
        saved = open_forecaster(given)
        _check_same_targets(own, given, saved.recipe)
        name = fresh_name(shown_name(given), taken)
        taken.add(name)
        prepared = prepare(table, SeriesOptions(split=split), saved.recipe)
        yield Contender(name, saved.kind, saved.model, prepared)


def _check_same_targets(own: Contender, given: str, other: Recipe) -> None:
    recipe = own.prepared.recipe
    if (recipe.outputs, recipe.ahead) != (other.outputs, other.ahead):
        raise ValueError(
            f"{given} forecasts {other.ahead} rows of {', '.join(other.outputs)} and {own.name} "
            f"{recipe.ahead} of {', '.join(recipe.outputs)}: only forecasts of the same rows can be "
            "compared."
        )
    if not _same_scale(recipe, other):
        raise ValueError(
            f"{given} and {own.name} were scaled by different training rows, so that their errors are "
            "in different units: train both on the same file with the same split."
        )


def _same_scale(one: Recipe, other: Recipe) -> bool:
    if one.scaler.ids != other.scaler.ids:
        return False
    scales = [
        (recipe.scaler.mean[:, places], recipe.scaler.deviation[:, places])
        for recipe in (one, other)
        for places in [recipe.scaler.places(recipe.outputs)]
    ]
    # The order in which numpy sums depends on how many columns there are.
    return np.allclose(scales[0], scales[1], rtol=1e-9, atol=0)


def _naive(own: Contender, table: Table, split: str | None) -> tuple[list[Contender], list[str]]:
    """The forecasters that need no training, and why one of them is missing."""
    recipe = own.prepared.recipe
    repeat = Contender("repeat", "repeat", build_forecaster("repeat", recipe), own.prepared)
    season = recipe.frequency.season
    if season == 1:
        return [repeat], [f"no season is known for rows {recipe.frequency} apart: without seasonal"]
    # A season may be longer than what the forecaster reads: the rows to forecast stay the same.
    longer = replace(recipe, past=max(recipe.past, season))
    try:
        prepared = prepare(table, SeriesOptions(split=split), longer)
    except ValueError as error:
        return [repeat], [f"without seasonal, which reads {season} rows ({str(error).rstrip('.')})"]
    model = build_forecaster("seasonal", longer)
    return [repeat, Contender("seasonal", "seasonal", model, prepared)], []


def _row(
    contender: Contender, options: ForecastEvalOptions, device: torch.device, console: Console
) -> dict[str, Any]:
    model, recipe = contender.model.to(device).eval(), contender.prepared.recipe
    windows = getattr(contender.prepared, options.part)
    with (
        progress(console, contender.name, len(windows)) as advance,
        PeakMemory(device) as memory,
    ):
        started = time.perf_counter()
        found = score_forecasts(
            model, windows, recipe, rows=options.rows, device=device, advance=advance
        )
        seconds = time.perf_counter() - started
    return {
        "name": contender.name,
        "kind": contender.kind,
        "past": recipe.past,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        **found,
        "intervals": {
            measure: _interval(found["per_unit"], found["per_unit"][sums], options)
            for measure, sums in MEASURES.items()
        },
        "seconds": seconds,
        "windows_per_second": found["windows"] / seconds,
        "peak_memory": memory.result,
    }


def _difference(
    own: dict[str, Any], other: dict[str, Any], options: ForecastEvalOptions
) -> dict[str, Any]:
    """What the first forecaster's scaled errors are above another's, drawn from the same blocks."""
    ours, theirs = own["per_unit"], other["per_unit"]
    if ours["targets"] != theirs["targets"]:
        raise ValueError(f"{own['name']} and {other['name']} were not scored on the same windows.")
    return {
        "of": own["name"],
        "above": other["name"],
        **{
            measure: _interval(ours, np.subtract(ours[sums], theirs[sums]), options)
            for measure, sums in MEASURES.items()
        },
    }


def _interval(
    per_unit: dict[str, Any], sums: Any, options: ForecastEvalOptions
) -> dict[str, float | None]:
    resampled = Resampled(np.arange(len(per_unit["targets"])), options.draws, options.seed)
    value, low, high = resampled.interval(
        np.asarray(sums), np.asarray(per_unit["targets"]), transform=lambda mean: mean
    )
    return {"value": value, "low": low, "high": high}
