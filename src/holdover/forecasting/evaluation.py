"""holdover forecast eval: score a forecaster and others on the same windows."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console

from ..evaluation.cost import PeakMemory
from ..evaluation.driver import Evaluation, difference, row_names
from ..evaluation.intervals import Resampled
from ..runs.provenance import redact_paths
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
    evaluation = Evaluation(options, console)
    saved = open_forecaster(options.model)
    table = open_table(with_trained_data(options, saved))
    split = options.split or _trained_split(saved)
    prepared = prepare(table, SeriesOptions(split=split), saved.recipe)
    notes = _notes(saved, prepared, options)
    names = row_names(options.model, options.against, reserved=("repeat", "seasonal"))
    own = Contender(names[0], saved.kind, saved.model, prepared)
    contenders = [own, *_others(options.against, names[1:], own, table, split)]
    naive, missing = _naive(own, table, split)
    contenders += naive
    rows = [_row(evaluation, contender) for contender in contenders]
    record = evaluation.record(
        "forecast evaluation",
        model={
            "name": own.name,
            "kind": own.kind,
            "config": saved.model.config.to_diff_dict(),
            "training": _training(saved),
        },
        data={**prepared.about, "part": options.part},
        notes=[*prepared.about["notes"], *notes, *missing],
        rows=rows,
        differences=[_difference(rows[0], row, options) for row in rows[1:]],
    )
    evaluation.write(RECORD, record)

    def plot() -> None:
        error_by_step(options.output / "error_by_step", {row["name"]: row for row in rows})

    return evaluation.finish(record, show, plot if options.plots else None)


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
    """Notes for the record about the part of these windows in the training."""
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
    models: tuple[str, ...], names: list[str], own: Contender, table: Table, split: str | None
) -> Iterator[Contender]:
    """The forecasters of --against, each with its own past and the same targets."""
    for model, name in zip(models, names, strict=True):
        saved = open_forecaster(model)
        _check_same_targets(own, model, saved.recipe)
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
    """The forecasters that need no training, and a note if one of them is missing."""
    recipe = own.prepared.recipe
    repeat = Contender("repeat", "repeat", build_forecaster("repeat", recipe), own.prepared)
    season = recipe.frequency.season
    if season == 1:
        return [repeat], [f"no season is known for rows {recipe.frequency} apart: without seasonal"]
    # A season may be longer than the forecaster's past: the rows to forecast stay the same.
    longer = replace(recipe, past=max(recipe.past, season))
    try:
        prepared = prepare(table, SeriesOptions(split=split), longer)
    except ValueError as error:
        return [repeat], [f"without seasonal, which reads {season} rows ({str(error).rstrip('.')})"]
    model = build_forecaster("seasonal", longer)
    return [repeat, Contender("seasonal", "seasonal", model, prepared)], []


def _row(evaluation: Evaluation, contender: Contender) -> dict[str, Any]:
    options: ForecastEvalOptions = evaluation.options
    device = evaluation.device
    model, recipe = contender.model.to(device).eval(), contender.prepared.recipe
    windows = getattr(contender.prepared, options.part)
    with (
        evaluation.progress(contender.name, len(windows)) as advance,
        PeakMemory(device) as memory,
    ):
        errors = score_forecasts(
            model, windows, recipe, rows=options.rows, device=device, advance=advance
        )
    per_unit = errors["per_unit"]
    resampled = _resampled(per_unit, options)
    return {
        "name": contender.name,
        "kind": contender.kind,
        "past": recipe.past,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        **errors,
        "intervals": {
            measure: resampled.mean(per_unit[sums], per_unit["targets"])
            for measure, sums in MEASURES.items()
        },
        "seconds": memory.seconds,
        "windows_per_second": errors["windows"] / memory.seconds,
        "peak_memory": memory.result,
    }


def _difference(
    own: dict[str, Any], other: dict[str, Any], options: ForecastEvalOptions
) -> dict[str, Any]:
    """The first forecaster's scaled errors less another's, paired by block."""
    ours, theirs = own["per_unit"], other["per_unit"]
    if ours["targets"] != theirs["targets"]:
        raise ValueError(f"{own['name']} and {other['name']} were not scored on the same windows.")
    values = {measure: np.subtract(ours[sums], theirs[sums]) for measure, sums in MEASURES.items()}
    resampled = _resampled(ours, options)
    return difference(own["name"], other["name"], resampled, values, ours["targets"])


def _resampled(per_unit: dict[str, Any], options: ForecastEvalOptions) -> Resampled:
    return Resampled(np.arange(len(per_unit["targets"])), options.draws, options.seed)
