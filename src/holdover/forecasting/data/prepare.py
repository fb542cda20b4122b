"""From a table to windows: split, scaled by the training rows, marked with the time; and a record."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .features import feature_names, time_features
from .options import SeriesOptions
from .recipe import Recipe, chosen_columns
from .regularity import shown_time
from .scaler import Scaler
from .splits import PARTS, RowSpan, SplitRule, check_long_enough
from .table import Series, Table
from .windows import Rows, Windows


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
