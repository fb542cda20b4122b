"""holdover forecast plot: evaluations, training curves, and forecasts of one window."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..evaluation.plots import training_curves
from ..runs.provenance import fresh_name, shown_name
from ..storage import EVALUATION, check_content
from ..training.log import LOG, read_log
from .data.named import open_table
from .data.options import SeriesOptions, TableOptions
from .data.prepare import Prepared, prepare
from .eval_options import Part, with_trained_data
from .evaluation import RECORD
from .figures import Drawn, drawn_columns, error_by_step, forecast_figure
from .folder import SavedForecaster, open_forecaster


def plot_forecasts(
    paths: Sequence[str | Path],
    output: Path,
    *,
    window: int | None = None,
    part: Part = "test",
    columns: Sequence[str] = (),
    table: TableOptions | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Draw evaluation records, forecasters and their training; returns the paths written.

    window: the number of the window in the part that is forecast; the middle one by default.
    """
    console = console or Console(highlight=False)
    rows: dict[str, dict[str, Any]] = {}
    forecasters: dict[str, SavedForecaster] = {}
    logs: dict[str, list[dict[str, Any]]] = {}
    for path in map(Path, paths):
        record = path / RECORD if path.is_dir() else path
        if record.is_file():
            for row in _read_rows(record):
                _add_row(rows, row)
        else:
            name = fresh_name(shown_name(str(path)), forecasters)
            forecasters[name] = open_forecaster(path)
            if log := read_log(path / LOG):
                logs[name] = log
    written: list[Path] = []
    if rows:
        written += error_by_step(output / "error_by_step", rows)
    if logs:
        measure = "Loss (MSE of scaled values)"
        written += training_curves(output / "training", logs, measure, "rows")
    if forecasters:
        table = table or TableOptions()
        written += _draw_window(output / "window", forecasters, table, part, window, columns)
    for path in written:
        console.print(str(path), soft_wrap=True)
    return written


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        record = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not an evaluation record ({error}): give the folder of holdover forecast eval."
        ) from error
    if not isinstance(record, dict) or record.get("record") != "forecast evaluation":
        raise ValueError(f"{path} is JSON, but not a record of holdover forecast eval.")
    return check_content(EVALUATION, record, path)["rows"]


def _add_row(rows: dict[str, dict[str, Any]], row: dict[str, Any]) -> None:
    """Every record of the same data has the naive forecasters: draw them once."""
    if any(row["per_unit"] == other["per_unit"] for other in rows.values()):
        return
    rows[fresh_name(row["name"], rows)] = row


def _draw_window(
    path_stem: Path,
    forecasters: dict[str, SavedForecaster],
    options: TableOptions,
    part: Part,
    number: int | None,
    columns: Sequence[str],
) -> tuple[Path, Path]:
    first = next(iter(forecasters.values()))
    forecasts: dict[str, np.ndarray] = {}
    prepared, number = _prepared(first, options, part, number)
    for name, saved in forecasters.items():
        own, _ = _prepared(saved, options, part, number)
        if _targets(own, part, number) != _targets(prepared, part, number):
            raise ValueError(
                f"{name} does not forecast the same rows as the first forecaster: give forecasters of "
                "the same data, columns, split and rows ahead."
            )
        forecasts[name] = _forecast(saved, own, part, number)
    windows = getattr(prepared, part)
    place, recipe = windows.place(number), prepared.recipe
    series_number = int(windows.series_of(np.array(number)))
    series = windows.rows.series[series_number]
    begin, end = place.row - recipe.past, place.row + recipe.ahead
    drawn = []
    for column in drawn_columns(recipe.outputs, columns):
        values = series.values[:, prepared.about["columns"].index(column)]
        where = recipe.outputs.index(column)
        drawn.append(
            Drawn(
                column,
                series.times[begin : place.row],
                values[begin : place.row],
                series.times[place.row : end],
                {name: values[:, where] for name, values in forecasts.items()},
                values[place.row : end],
            )
        )
    title = f"{prepared.about['data']} {place.series}".strip()
    return forecast_figure(path_stem, f"{title}: {part} window {number:,}", drawn)


def _prepared(
    saved: SavedForecaster, options: TableOptions, part: Part, number: int | None
) -> tuple[Prepared, int]:
    split = None if saved.run is None else saved.run["data"]["split"]
    table = open_table(with_trained_data(options, saved))
    prepared = prepare(table, SeriesOptions(split=split), saved.recipe)
    count = len(getattr(prepared, part))
    number = count // 2 if number is None else number
    if not 0 <= number < count:
        raise ValueError(
            f"--window {number} is not one of the {count:,} windows of the {part} part: give 0 to "
            f"{count - 1}."
        )
    return prepared, number


def _targets(prepared: Prepared, part: Part, number: int) -> Any:
    recipe, place = prepared.recipe, getattr(prepared, part).place(number)
    return prepared.about["sha256"], recipe.outputs, recipe.ahead, place.series, place.row


@torch.no_grad()
def _forecast(saved: SavedForecaster, prepared: Prepared, part: Part, number: int) -> np.ndarray:
    """[ahead, O] in the file's units."""
    batch = getattr(prepared, part).batch(np.array([number]))
    scaled = saved.model.forecast(batch.values, batch.marks, batch.future_marks)
    ids = prepared.recipe.scaler.ids
    series = prepared.about["series"][int(batch.series[0])]["id"]
    return prepared.recipe.scaler.restore(
        scaled[0].double().numpy(), prepared.recipe.outputs, ids.index(series)
    )
