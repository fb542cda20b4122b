"""Figures of a report: points and curves out of records, as inline SVG.

As a number of a table does, every point and every curve says which records it is of: in data attributes,
and by name in its title. Lines that join points say nothing of their own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...pages.charts import Axis, Chart, Point, attributes, marker
from ...pages.wording import escaped
from ..definition import Figure, Series, Value
from .cells import source_of
from .section import Section

# Looks that the style sheet has.
LOOKS = 10


def draw(figure: Figure, section: Section) -> str:
    """Nothing where no record has a point of it."""
    drawn = [
        (f"series{number}", series, points_of(series, section)[figure.later :])
        for number, series in zip(looks(figure, section), figure.series, strict=True)
    ]
    known = [(look, series, points) for look, series, points in drawn if points]
    if not known:
        return ""
    if figure.log_x:
        known = [
            (look, series, [replace(p, x=math.log10(p.x)) for p in points if p.x > 0])
            for look, series, points in known
        ]
    every = [point for _, _, points in known for point in points]
    bounds = [value for p in every for value in (p.y, p.low, p.high)]
    chart = Chart(
        f"{figure.title}: {figure.y} over {figure.x}",
        Axis.around(
            figure.x, [p.x for p in every], write=powers if figure.log_x else short, ticks=5
        ),
        Axis.around(figure.y, bounds, write=short),
        height=290,
    )
    for look, series, points in known:
        line = [(point.x, point.y) for point in points]
        if series.curve is None:
            chart.line(look, line)
            chart.points(look, points)
        else:
            chart.line(look, line, *_told_of_curve(series, section))
    names = [(swatch(look, series.curve is None), series.name) for look, series, _ in known]
    if figure.frontier:
        chart.line("frontier", [(point.x, point.y) for point in frontier(every)])
        names.append((swatch("frontier", False), "frontier: nothing is lower and further left"))
    legend = "".join(f"<li>{drawn} {escaped(name)}</li>" for drawn, name in names)
    bars = any(point.low is not None for point in every)
    notes = ["Bars: 95\u00a0% intervals, where there are any."] if bars else []
    notes += _means(figure, section)
    notes += [figure.note] if figure.note else []
    source = {"section": section.anchor}
    source |= {"log-x": "yes"} if figure.log_x else {}
    source |= {"later": "yes"} if figure.later else {}
    return (
        f"<figure{attributes(source)}><h3>{escaped(figure.title)}</h3>{chart.svg()}"
        f'<ul class="legend">{legend}</ul>'
        f"<figcaption>{escaped(' '.join(notes))}</figcaption></figure>"
    )


def looks(figure: Figure, section: Section) -> list[int]:
    """One for each series: in all figures of a section the same for one name, whichever others have
    records. Where there are more names than looks, a figure counts its own."""
    every = [series.name for one in (*section.layout.figures, figure) for series in one.series]
    names = list(dict.fromkeys(every))
    found = [names.index(series.name) % LOOKS for series in figure.series]
    apart = len(set(found)) == len(found)
    return found if apart else [number % LOOKS for number in range(len(found))]


def _means(figure: Figure, section: Section) -> list[str]:
    """How many seeds curves are of."""
    arms = [series.curve[0] for series in figure.series if series.curve is not None]
    counts = sorted({found for arm in arms if (found := len(section.records.of(arm)))})
    if not counts or counts == [1]:
        return []
    ends = dict.fromkeys(str(one) for one in (counts[0], counts[-1]))
    return [f"Curves: means of {' to '.join(ends)} seeds."]


def swatch(look: str, marked: bool) -> str:
    """A piece of the line, for the legend."""
    return (
        f'<svg class="swatch" viewBox="0 0 30 10" aria-hidden="true">'
        f'<path class="line {look}" d="M1 5H29"/>{marker(look, 15, 5) if marked else ""}</svg>'
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
        return _curve(_curves(series, section))
    found = []
    labels = series.labels or [""] * len(series.points)
    for (x, y), label in zip(series.points, labels, strict=True):
        across = section.estimate(x) if isinstance(x, Value) else None
        left = across.value if across is not None else x
        there = section.estimate(y)
        if isinstance(left, Value) or there is None:
            continue
        told, source, runs = y.form.format(there.value), source_of(y), there.sources
        if isinstance(x, Value) and across is not None:
            told += f" at {short(left)}"
            source |= {f"x-{name}": said for name, said in source_of(x).items()}
            runs = dict.fromkeys((*runs, *across.sources))
        told = f"{series.name}: {told}; {there.over}; {', '.join(runs)}"
        source["form"] = y.form
        found.append(Point(float(left), there.value, there.low, there.high, label, told, source))
    return found


# By seed: its curve, and the names of the runs it is of.
Curves = dict[int, tuple[list[list[float]], list[str]]]


def _curves(series: Series, section: Section) -> Curves:
    """Above a base: of the seeds that both have."""
    assert series.curve is not None
    arm, name = series.curve
    curves = _by_seed(section.records.of(arm), name)
    if series.above is None:
        return curves
    below = _by_seed(section.records.of(series.above), name)
    return {
        seed: (
            [[x, y - its] for (x, y), (_, its) in zip(curve, below[seed][0], strict=False)],
            [*runs, *below[seed][1]],
        )
        for seed, (curve, runs) in curves.items()
        if seed in below
    }


def _curve(curves: Curves) -> list[Point]:
    """The mean over seeds, point by point: what was read until a validation differs a little. A run that
    ended early has no more points than it made, and nor has the mean."""
    if not curves:
        return []
    points = min(len(curve) for curve, _ in curves.values())
    means = np.mean([curve[:points] for curve, _ in curves.values()], axis=0)
    return [Point(float(x), float(y)) for x, y in means]


def _told_of_curve(series: Series, section: Section) -> tuple[str, dict[str, str]]:
    assert series.curve is not None
    arm, name = series.curve
    source = {"curve": name, "arm": arm}
    source |= {"above": series.above} if series.above is not None else {}
    found = _curves(series, section)
    over = "one seed" if len(found) == 1 else f"mean of {len(found)} seeds"
    runs = ", ".join(run for _, runs in found.values() for run in runs)
    return f"{series.name}; {over}; {runs}", source


def _by_seed(records: Sequence[Mapping[str, Any]], name: str) -> Curves:
    return {
        one["seed"]: (one["curves"][name], [one["run"]]) for one in records if name in one["curves"]
    }


def powers(value: float) -> str:
    """A tick of an axis of logarithms: whole powers of ten alone."""
    return short(10**value) if abs(value - round(value)) < 1e-9 else ""


def short(value: float) -> str:
    """A tick: large numbers with the letter of their thousands."""
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= unit:
            return f"{value / (1e3 if letter == 'k' else unit):.3g}{letter}"
    return f"{value:.4g}"
