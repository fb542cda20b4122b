"""Figures of a report: points and curves out of records, as inline SVG."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..experiment.definition import Figure, Series, Value
from ..page.charts import Axis, Chart, Point
from ..page.wording import escaped
from .gather import Section

# Looks that the style sheet has.
LOOKS = 6


def draw(figure: Figure, section: Section) -> str:
    """Nothing where no record has a point of it."""
    drawn = [(series, points_of(series, section)) for series in figure.series]
    known = [(series, points) for series, points in drawn if points]
    if not known:
        return ""
    every = [point for _, points in known for point in points]
    bounds = [value for p in every for value in (p.y, p.low, p.high)]
    chart = Chart(
        f"{figure.title}: {figure.y} over {figure.x}",
        Axis.around(figure.x, [point.x for point in every], write=short, ticks=4),
        Axis.around(figure.y, bounds, write=short),
        height=290,
    )
    for number, (series, points) in enumerate(known):
        look = f"series{number % LOOKS}"
        chart.line(look, [(point.x, point.y) for point in sorted(points, key=lambda p: p.x)])
        if series.curve is None:
            chart.points(look, points)
    names = [
        (swatch(f"series{number % LOOKS}"), series.name) for number, (series, _) in enumerate(known)
    ]
    if figure.frontier:
        chart.line("frontier", [(point.x, point.y) for point in frontier(every)])
        names.append((swatch("frontier"), "frontier: nothing is lower and further left"))
    legend = "".join(f"<li>{drawn} {escaped(name)}</li>" for drawn, name in names)
    note = f" {escaped(figure.note)}" if figure.note else ""
    return (
        f"<figure><h3>{escaped(figure.title)}</h3>{chart.svg()}"
        f'<ul class="legend">{legend}</ul>'
        f"<figcaption>Bars: 95&nbsp;% intervals, where there are any.{note}</figcaption></figure>"
    )


def swatch(look: str) -> str:
    """A piece of the line, for the legend."""
    return (
        f'<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true">'
        f'<path class="line {look}" d="M1 5H29"/></svg>'
    )


def frontier(points: Sequence[Point]) -> list[Point]:
    """From left to right those that are lower than all to their left."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.x, p.y)):
        if not found or point.y < found[-1].y:
            found.append(point)
    return found


def points_of(series: Series, section: Section) -> list[Point]:
    if series.curve is not None:
        return _curve(section.records.of(series.curve[0]), series.curve[1])
    found = []
    for x, y in series.points:
        left = x if not isinstance(x, Value) else getattr(section.estimate(x), "value", None)
        there = section.estimate(y)
        if left is not None and there is not None:
            told = f"{series.name}: {y.form.format(there.value)} ({there.over})"
            found.append(Point(float(left), there.value, there.low, there.high, told=told))
    return found


def _curve(records: Sequence[Mapping[str, Any]], name: str) -> list[Point]:
    """The mean over seeds; curves of other lengths than the first are left out."""
    curves = [record["curves"][name] for record in records if name in record["curves"]]
    if not curves:
        return []
    same = [curve for curve in curves if [x for x, _ in curve] == [x for x, _ in curves[0]]]
    means = np.mean([[y for _, y in curve] for curve in same], axis=0)
    return [Point(float(x), float(y)) for (x, _), y in zip(curves[0], means, strict=True)]


def short(value: float) -> str:
    """A tick: large numbers with the letter of their thousands."""
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):.3g}{letter}"
    return f"{value:.4g}"
