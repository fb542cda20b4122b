"""From a table to windows: split, scaled by the training rows, marked with the time; and a record.

Beyond the end of a file: the last rows of every series, and the times to come.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .cells import counted
from .frequency import feature_names, time_features
from .options import SeriesOptions
from .recipe import Recipe, Scaler, chosen_columns
from .table import Series, Table, shown_time
from .windows import PARTS, Rows, RowSpan, SplitRule, Windows, check_long_enough


@dataclass(frozen=True)
class Prepared:
    train: Windows
    valid: Windows
    test: Windows
    recipe: Recipe
    about: dict[str, Any]  # JSON for records

    @property
    def scaler(self) -> Scaler:
        return self.recipe.scaler


def prepare(table: Table, options: SeriesOptions, recipe: Recipe | None = None) -> Prepared:
    """The windows of a table; with the recipe of a trained forecaster, by its columns and its scaler."""
    past, ahead = options.past, options.ahead
    if recipe is not None:
        recipe.check(table)
        past, ahead = recipe.past, recipe.ahead
    rule = SplitRule.parse(options.split or table.split)
    spans = [_spans(series, table, rule, past, ahead) for series in table.series]
    recipe = recipe or _fitted(table, options, spans)
    rows = _rows(table, recipe)
    parts = {
        part: Windows(rows, [of_series[part] for of_series in spans], past, ahead) for part in PARTS
    }
    about = _about(table, rule, spans, recipe, parts)
    return Prepared(**parts, recipe=recipe, about=about)


def _spans(
    series: Series, table: Table, rule: SplitRule, past: int, ahead: int
) -> dict[str, RowSpan]:
    name = f"{table.name}, series {series.id}" if series.id else table.name
    found = rule.spans(len(series), past, table.frequency, name)
    for part, span in found.items():
        check_long_enough(span, part, past, ahead, name)
    return found


def _fitted(table: Table, options: SeriesOptions, spans: list[dict[str, RowSpan]]) -> Recipe:
    inputs, outputs = chosen_columns(table, options.features, options.target)
    places = [table.columns.index(column) for column in inputs]
    training = [
        series.values[: of_series["train"].stop, places]
        for series, of_series in zip(table.series, spans, strict=True)
    ]
    scaler = Scaler.fit(inputs, [series.id for series in table.series], training)
    return Recipe(inputs, outputs, options.past, options.ahead, table.frequency, scaler)


def _rows(table: Table, recipe: Recipe) -> Rows:
    inputs = np.concatenate(recipe.scaled(table))
    marks = [time_features(series.times, table.frequency) for series in table.series]
    places = recipe.scaler.places(recipe.outputs)
    return Rows(table.series, inputs, inputs[:, places], np.concatenate(marks))


def _about(
    table: Table,
    rule: SplitRule,
    spans: list[dict[str, RowSpan]],
    recipe: Recipe,
    parts: dict[str, Windows],
) -> dict[str, Any]:
    return {
        "data": table.name,
        "sha256": table.sha256,
        "form": table.form,
        "rows": len(table),
        "columns": list(table.columns),
        "time_features": list(feature_names(table.frequency)),
        "season": table.frequency.season,
        "split": str(rule),
        "series": [
            _about_series(series, of_series)
            for series, of_series in zip(table.series, spans, strict=True)
        ],
        "windows": {part: len(windows) for part, windows in parts.items()},
        "recipe": recipe.to_json(),
        "notes": [*table.notes, *recipe.scaler.notes()],
    }


def _about_series(series: Series, spans: dict[str, RowSpan]) -> dict[str, Any]:
    """Rows from 0, the last one not included; first and last time of each part."""
    return {
        "id": series.id,
        "rows": len(series),
        "unused_rows": len(series) - spans["test"].stop,
        "parts": {
            part: {
                "rows": [span.start, span.stop],
                "reads_from": span.start - span.lead,
                "times": [shown_time(series.times[row]) for row in (span.start, span.stop - 1)],
            }
            for part, span in spans.items()
        },
    }


@dataclass(frozen=True)
class Beyond:
    """What a forecaster reads to forecast what is not in the file, one row for each series."""

    values: Tensor  # [S, past, I] scaled
    marks: Tensor  # [S, past, F]
    future_marks: Tensor  # [S, ahead, F]
    times: np.ndarray  # [S, ahead] datetime64[us]
    ids: tuple[str, ...]
    recipe: Recipe

    def in_units(self, forecast: Tensor) -> np.ndarray:  # [S, ahead, O] float64
        """A forecast of these rows, scaled, in the units of the file."""
        found = forecast.detach().to("cpu", torch.float64).numpy()
        wanted = (len(self.ids), self.recipe.ahead, len(self.recipe.outputs))
        if found.shape != wanted:
            raise ValueError(f"A forecast of shape {wanted} was expected, got {found.shape}.")
        if not np.isfinite(found).all():
            series, step, column = np.argwhere(~np.isfinite(found))[0].tolist()
            of_series = f" of series {self.ids[series]}" if self.ids[series] else ""
            ahead = counted(step + 1, "step")
            raise ValueError(
                f"The forecast of {self.recipe.outputs[column]}{of_series} {ahead} ahead is "
                f"{found[series, step, column]}, not a number: the model's weights or the values it "
                "read are out of range."
            )
        known = self.recipe.scaler.ids
        return self.recipe.scaler.restore(
            found, self.recipe.outputs, np.array([known.index(name) for name in self.ids])
        )


def beyond(table: Table, recipe: Recipe) -> Beyond:
    recipe.check(table)
    for series in table.series:
        if len(series) < recipe.past:
            name = f"{table.name}, series {series.id}" if series.id else table.name
            raise ValueError(
                f"{name} has {counted(len(series), 'row')} where a forecast is made from past="
                f"{recipe.past}: give a longer file."
            )
    frequency = recipe.frequency
    scaled = [rows[-recipe.past :] for rows in recipe.scaled(table)]
    marks = [time_features(series.times[-recipe.past :], frequency) for series in table.series]
    times = [frequency.after(series.times[-1], recipe.ahead) for series in table.series]
    return Beyond(
        values=torch.from_numpy(np.stack(scaled)),
        marks=torch.from_numpy(np.stack(marks)),
        future_marks=torch.from_numpy(np.stack([time_features(t, frequency) for t in times])),
        times=np.stack(times),
        ids=tuple(series.id for series in table.series),
        recipe=recipe,
    )
