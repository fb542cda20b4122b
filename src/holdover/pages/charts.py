"""Small charts as inline SVG: the plotting layer of every page.

* Colours are the page's CSS classes, so a chart follows the light or dark scheme around it.
* The viewBox is about as wide as a phone's column, so text stays readable there.
* Series differ in dash and marker too, so colour is not needed to read them.
* Points and curves can carry data attributes that say which records they come from.

A chart collects elements; `templates/macros.html` writes and escapes them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

WIDTH = 400
RIGHT, BOTTOM, LEFT = 14, 38, 46
# Above the frame: the label of the y axis, and the legend if the chart has one.
TOP, TOP_WITH_LEGEND = 28, 46
# Approximate width of a letter in the legend; text is not measured here.
LETTER = 6.3
SWATCH = 30
# Series with a square marker; the others have a circle.
SQUARES = ("plain", "series0", "series2", "series4")


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    format: Callable[[float], str] = "{:g}".format
    ticks: int = 5

    @classmethod
    def around(
        cls, label: str, values: Sequence[float | None], margin: float = 0.08, **options
    ) -> "Axis":
        """An axis that shows these values with a margin on both sides."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        room = (high - low) * margin or abs(high) * margin or 1.0
        return cls(label, low - room, high + room, **options)


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    title: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    """Which records it comes from, as data attributes."""


@dataclass(frozen=True)
class Element:
    """An SVG element."""

    tag: str
    attributes: Mapping[str, str]
    title: str = ""
    """The tooltip."""
    text: str = ""


@dataclass(frozen=True)
class PageFigure:
    """One or more charts with a heading and a caption."""

    title: str
    charts: "Sequence[Chart]"
    caption: str
    legend: Sequence[tuple[Sequence[Element], str]] = ()
    """A swatch and a name for each series."""
    source: Mapping[str, str] = field(default_factory=dict)


class Chart:
    """Two axes to draw on. `kind` is the CSS class of a series."""

    def __init__(
        self,
        description: str,
        x: Axis,
        y: Axis,
        height: int = 240,
        legend: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`legend`: kinds and their names."""
        self.description, self.x, self.y = description, x, y
        self.width, self.height, self.legend = WIDTH, height, legend
        self.top = TOP_WITH_LEGEND if legend else TOP
        self.drawn: list[Element] = []

    def line(
        self,
        kind: str,
        points: Sequence[tuple[float, float | None]],
        title: str = "",
        source: Mapping[str, str] | None = None,
    ) -> None:
        """A line with gaps where y is unknown."""
        steps, pen_up = [], True
        for x, y in points:
            if y is None or not math.isfinite(y):
                pen_up = True
                continue
            steps.append(f"{'M' if pen_up else 'L'}{self._left(x):.1f} {self._top(y):.1f}")
            pen_up = False
        self.drawn.append(_path(f"line {kind}", "".join(steps), title, source))

    def points(self, kind: str, points: Sequence[Point], shift: float = 0, below=False) -> None:
        """Markers with their intervals; `shift` separates two series at the same x."""
        for point in points:
            x, y = self._left(point.x) + shift, self._top(point.y)
            if point.low is not None and point.high is not None:
                low, high = self._top(point.low), self._top(point.high)
                ends = f"M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6"
                self.drawn.append(_path(f"bar {kind}", f"M{x:.1f} {low:.1f}V{high:.1f}{ends}"))
            self.drawn.append(marker(kind, x, y, point.title, point.source))
            if point.label:
                label_y = f"{y + 14 if below else y - 6:.1f}"
                self.drawn.append(_text(f"at {kind}", f"{x + 6:.1f}", label_y, point.label))

    def level(self, y: float) -> None:
        """A horizontal line to compare with."""
        self.drawn.append(_path("level", f"M{LEFT} {self._top(y):.1f}H{WIDTH - RIGHT}"))

    def stop(self, x: float, label: str) -> None:
        """A vertical line where something ends."""
        left = self._left(x)
        self.drawn.append(_path("stop", f"M{left:.1f} {self.top}V{self.height - BOTTOM}"))
        self.drawn.append(_text("at", f"{left + 6:.1f}", str(self.top + 11), label))

    def elements(self) -> Iterator[Element]:
        floor, right = self.height - BOTTOM, WIDTH - RIGHT
        yield _text("axis", "0", "12", self.y.label)
        yield _text("axis", str(right), str(self.height - 4), self.x.label, "end")
        for value in ticks(self.y.low, self.y.high, self.y.ticks):
            y = self._top(value)
            yield _path("grid", f"M{LEFT} {y:.1f}H{right}")
            yield _text("tick", str(LEFT - 7), f"{y + 4:.1f}", self.y.format(value), "end")
        for value in ticks(self.x.low, self.x.high, self.x.ticks):
            x = f"{self._left(value):.1f}"
            yield _path("tickmark", f"M{x} {floor}v4")
            yield _text("tick", x, str(floor + 16), self.x.format(value), "middle")
        yield _path("base", f"M{LEFT} {floor}H{right}")
        left = float(LEFT)
        for kind, name in self.legend:
            yield _path(f"line {kind}", f"M{left:.0f} 28h{SWATCH - 8}")
            if "bare" not in kind.split():
                yield marker(kind, left + (SWATCH - 8) / 2, 28)
            yield _text("key", f"{left + SWATCH - 2:.0f}", "32", name)
            left += SWATCH + LETTER * len(name) + 10
        yield from self.drawn

    def _left(self, x: float) -> float:
        share = (x - self.x.low) / ((self.x.high - self.x.low) or 1.0)
        return LEFT + share * (WIDTH - RIGHT - LEFT)

    def _top(self, y: float) -> float:
        """Clipped to the frame, so that an outlier is not drawn over the text around it."""
        share = min(1.0, max(0.0, (y - self.y.low) / ((self.y.high - self.y.low) or 1.0)))
        return self.height - BOTTOM - share * (self.height - BOTTOM - self.top)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers between two bounds; `about` is the approximate number of them."""
    if high <= low:
        return [low]
    rough = (high - low) / max(1, about)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(times for times in (1, 2, 5, 10) if times * unit >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def marker(
    kind: str, x: float, y: float, title: str = "", source: Mapping[str, str] | None = None
) -> Element:
    name = {"class": f"marker {kind}"}
    if kind.startswith(SQUARES):
        corner = {"x": f"{x - 4:.1f}", "y": f"{y - 4:.1f}", "width": "8", "height": "8"}
        return Element("rect", name | corner | data_attributes(source or {}), title)
    circle = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4.5"}
    return Element("circle", name | circle | data_attributes(source or {}), title)


def swatch(kind: str, with_marker: bool) -> list[Element]:
    """The sample of a series for a legend outside the chart: a line in a box of 30 x 10."""
    return [_path(f"line {kind}", "M1 5H29"), *([marker(kind, 15, 5)] if with_marker else [])]


def data_attributes(source: Mapping[str, str]) -> dict[str, str]:
    return {f"data-{name}": value for name, value in source.items()}


def _path(
    kind: str, steps: str, title: str = "", source: Mapping[str, str] | None = None
) -> Element:
    return Element("path", {"class": kind, "d": steps} | data_attributes(source or {}), title)


def _text(kind: str, x: str, y: str, text: str, anchor: str = "") -> Element:
    place = {"class": kind, "x": x, "y": y} | ({"text-anchor": anchor} if anchor else {})
    return Element("text", place, text=text)
