"""Turn a table into inputs of forecasters: windows of its parts, or the last rows of series."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .cells import counted, shown_time
from .frequency import feature_names, time_features
from .options import SeriesOptions
from .recipe import Recipe, Scaler, chosen_columns
from .table import Series, Table
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
    """The windows of a table; a recipe gives those that its trained forecaster reads."""
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
    name = table.name_of(series)
    spans = rule.spans(len(series), past, table.frequency, name)
    for part, span in spans.items():
        check_long_enough(span, part, past, ahead, name)
    return spans


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
    """Row ranges (from 0, without the last), and the first and last time of each part."""
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
    """The inputs for a forecast beyond the end of a file, one row per series."""

    values: Tensor  # [S, past, I] scaled
    marks: Tensor  # [S, past, F]
    future_marks: Tensor  # [S, ahead, F]
    times: np.ndarray  # [S, ahead] datetime64[us]
    ids: tuple[str, ...]
    recipe: Recipe

    def in_units(self, forecast: Tensor) -> np.ndarray:  # [S, ahead, O] float64
        """A scaled forecast [S, ahead, O] in the units of the file."""
        values = forecast.detach().to("cpu", torch.float64).numpy()
        expected = (len(self.ids), self.recipe.ahead, len(self.recipe.outputs))
        if values.shape != expected:
            raise ValueError(f"A forecast of shape {expected} was expected, got {values.shape}.")
        if not np.isfinite(values).all():
            series, step, column = np.argwhere(~np.isfinite(values))[0].tolist()
            of_series = f" of series {self.ids[series]}" if self.ids[series] else ""
            ahead = counted(step + 1, "step")
            raise ValueError(
                f"The forecast of {self.recipe.outputs[column]}{of_series} {ahead} ahead is "
                f"{values[series, step, column]}, not a number: the weights or the values that the "
                "model read are out of range."
            )
        known = self.recipe.scaler.ids
        return self.recipe.scaler.restore(
            values, self.recipe.outputs, np.array([known.index(name) for name in self.ids])
        )


def beyond(table: Table, recipe: Recipe) -> Beyond:
    """The last rows of every series, and the times that follow them."""
    recipe.check(table)
    for series in table.series:
        if len(series) < recipe.past:
            raise ValueError(
                f"{table.name_of(series)} has {counted(len(series), 'row')}, but the forecaster reads "
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
