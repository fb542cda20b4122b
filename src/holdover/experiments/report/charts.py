"""Figures of a report: points and curves from records.

Every point and every curve says which records it comes from: in data attributes, and by name in its
title. Lines that join points carry no data of their own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...pages.charts import Axis, Chart, PageFigure, Point, data_attributes, swatch
from ..definition import Figure, Series, Value
from .cells import source_of
from .section import Section

# Number of series styles in the style sheet.
STYLES = 10


def draw(figure: Figure, section: Section) -> PageFigure | None:
    """None if no record has a point of it."""
    series = [
        (f"series{style}", one, points_of(one, section)[figure.later :])
        for style, one in zip(styles(figure, section), figure.series, strict=True)
    ]
    known = [(style, one, points) for style, one, points in series if points]
    if not known:
        return None
    if figure.log_x:
        known = [
            (style, one, [replace(p, x=math.log10(p.x)) for p in points if p.x > 0])
            for style, one, points in known
        ]
    every = [point for _, _, points in known for point in points]
    bounds = [value for p in every for value in (p.y, p.low, p.high)]
    x_format = powers if figure.log_x else short
    chart = Chart(
        f"{figure.title}: {figure.y} over {figure.x}",
        Axis.around(figure.x, [p.x for p in every], format=x_format, ticks=5),
        Axis.around(figure.y, bounds, format=short),
        height=290,
    )
    legend = []
    for style, one, points in known:
        line = [(point.x, point.y) for point in points]
        if one.curve is None:
            chart.line(style, line)
            chart.points(style, points)
        else:
            chart.line(style, line, *_curve_source(one, section))
        legend.append((swatch(style, one.curve is None), one.name))
    if figure.frontier:
        chart.line("frontier", [(point.x, point.y) for point in frontier(every)])
        name = "frontier: no other point is lower and further left"
        legend.append((swatch("frontier", False), name))
    bars = any(point.low is not None for point in every)
    notes = ["Bars: 95\u00a0% intervals, where known."] if bars else []
    notes += _means(figure, section)
    notes += [figure.note] if figure.note else []
    source = {"section": section.anchor}
    source |= {"log-x": "yes"} if figure.log_x else {}
    source |= {"later": "yes"} if figure.later else {}
    return PageFigure(figure.title, [chart], " ".join(notes), legend, data_attributes(source))


def styles(figure: Figure, section: Section) -> list[int]:
    """The style of each series.

    A name has the same style in all figures of a section, whichever series have records. With more
    names than styles, each figure counts its own.
    """
    every = [series.name for one in (*section.layout.figures, figure) for series in one.series]
    names = list(dict.fromkeys(every))
    chosen = [names.index(series.name) % STYLES for series in figure.series]
    distinct = len(set(chosen)) == len(chosen)
    return chosen if distinct else [number % STYLES for number in range(len(chosen))]


def _means(figure: Figure, section: Section) -> list[str]:
    """How many seeds the curves are means of."""
    arms = [series.curve[0] for series in figure.series if series.curve is not None]
    counts = sorted({seeds for arm in arms if (seeds := len(section.records.of(arm)))})
    if not counts or counts == [1]:
        return []
    ends = dict.fromkeys(str(one) for one in (counts[0], counts[-1]))
    return [f"Curves: means of {' to '.join(ends)} seeds."]


def frontier(points: Sequence[Point]) -> list[Point]:
    """From left to right the points that are lower than all to their left."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not best or point.y < best[-1].y:
            best.append(point)
    return best


def points_of(series: Series, section: Section) -> list[Point]:
    if series.curve is not None:
        return _mean_curve(_curves(series, section))
    points = []
    labels = series.labels or [""] * len(series.points)
    for (x, y), label in zip(series.points, labels, strict=True):
        x_estimate = section.estimate(x) if isinstance(x, Value) else None
        left = x_estimate.value if x_estimate is not None else x
        estimate = section.estimate(y)
        if isinstance(left, Value) or estimate is None:
            continue
        title, source, runs = y.form.format(estimate.value), source_of(y), estimate.sources
        if isinstance(x, Value) and x_estimate is not None:
            title += f" at {short(left)}"
            source |= {f"x-{name}": value for name, value in source_of(x).items()}
            runs = dict.fromkeys((*runs, *x_estimate.sources))
        title = f"{series.name}: {title}; {estimate.over}; {', '.join(runs)}"
        source["form"] = y.form
        bounds = estimate.low, estimate.high
        points.append(Point(float(left), estimate.value, *bounds, label, title, source))
    return points


# By seed: its curve, and the names of the runs it comes from.
Curves = dict[int, tuple[list[list[float]], list[str]]]


def _curves(series: Series, section: Section) -> Curves:
    """With a base to subtract: of the seeds that both have."""
    assert series.curve is not None
    arm, name = series.curve
    curves = _by_seed(section.records.of(arm), name)
    if series.above is None:
        return curves
    base = _by_seed(section.records.of(series.above), name)
    return {
        seed: (
            [[x, y - its] for (x, y), (_, its) in zip(curve, base[seed][0], strict=False)],
            [*runs, *base[seed][1]],
        )
        for seed, (curve, runs) in curves.items()
        if seed in base
    }


def _mean_curve(curves: Curves) -> list[Point]:
    """The mean over seeds, point by point.

    Seeds differ slightly in how much they had read at a validation, so x is a mean too. The mean ends
    where the shortest run ended.
    """
    if not curves:
        return []
    points = min(len(curve) for curve, _ in curves.values())
    means = np.mean([curve[:points] for curve, _ in curves.values()], axis=0)
    return [Point(float(x), float(y)) for x, y in means]


def _curve_source(series: Series, section: Section) -> tuple[str, dict[str, str]]:
    """The title and the data attributes of a curve."""
    assert series.curve is not None
    arm, name = series.curve
    source = {"curve": name, "arm": arm}
    source |= {"above": series.above} if series.above is not None else {}
    curves = _curves(series, section)
    over = "one seed" if len(curves) == 1 else f"mean of {len(curves)} seeds"
    runs = ", ".join(run for _, runs in curves.values() for run in runs)
    return f"{series.name}; {over}; {runs}", source


def _by_seed(records: Sequence[Mapping[str, Any]], name: str) -> Curves:
    return {
        one["seed"]: (one["curves"][name], [one["run"]]) for one in records if name in one["curves"]
    }


def powers(value: float) -> str:
    """A tick of a logarithmic axis: only whole powers of ten."""
    return short(10**value) if abs(value - round(value)) < 1e-9 else ""


def short(value: float) -> str:
    """A tick: large numbers end with a letter for their thousands."""
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):.3g}{letter}"
    return f"{value:.4g}"
