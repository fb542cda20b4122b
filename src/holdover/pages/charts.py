"""Small charts as inline SVG, written by hand.

* Colours are the page's CSS classes, so a chart follows the light or dark scheme around it.
* The viewBox is about as wide as a phone's column: lettering stays legible there, and grows elsewhere.
* Series differ in dash and marker too, so colour is not needed to read them.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .wording import escaped

WIDTH = 400
RIGHT, BOTTOM, LEFT = 14, 38, 46
# Above the frame: the y axis's label, and where there is one the legend.
TOP, TOP_WITH_LEGEND = 28, 46
# Lettering is not measured here: a letter of the legend is taken to be so wide.
LETTER = 6.3
SWATCH = 30
# Kinds whose marker is a square; the others' is a circle.
SQUARES = ("plain", "series0", "series2", "series4")


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    write: Callable[[float], str] = "{:g}".format
    ticks: int = 5

    @classmethod
    def around(
        cls, label: str, values: Iterable[float | None], margin: float = 0.08, **more
    ) -> "Axis":
        """An axis that holds these values with some air on both sides."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        air = (high - low) * margin or abs(high) * margin or 1.0
        return cls(label, low - air, high + air, **more)


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    told: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    """Where it comes from, as data attributes."""


class Chart:
    """Two axes to draw on. `kind` is always a CSS class that says whose line or point it is."""

    def __init__(
        self,
        described: str,
        x: Axis,
        y: Axis,
        height: int = 240,
        keys: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`keys` is the legend: kinds and their names."""
        self.described, self.x, self.y, self.height, self.keys = described, x, y, height, keys
        self.top = TOP_WITH_LEGEND if keys else TOP
        self.drawn: list[str] = []

    def line(
        self,
        kind: str,
        points: Sequence[tuple[float, float | None]],
        told: str = "",
        source: Mapping[str, str] | None = None,
    ) -> None:
        """A line with gaps where y is not known."""
        steps, pen_up = [], True
        for x, y in points:
            if y is None or not math.isfinite(y):
                pen_up = True
                continue
            steps.append(f"{'M' if pen_up else 'L'}{self._left(x):.1f} {self._top(y):.1f}")
            pen_up = False
        shape = f'path class="line {kind}" d="{"".join(steps)}"'
        self.drawn.append(_mark(shape, told, source or {}))

    def points(self, kind: str, points: Sequence[Point], shift: float = 0, below=False) -> None:
        """Markers with their intervals; `shift` keeps two series at the same x apart."""
        for point in points:
            x, y = self._left(point.x) + shift, self._top(point.y)
            low, high = y, y
            if point.low is not None and point.high is not None:
                low, high = self._top(point.low), self._top(point.high)
                self.drawn.append(
                    f'<path class="bar {kind}" d="M{x:.1f} {low:.1f}V{high:.1f}'
                    f'M{x - 3:.1f} {low:.1f}h6M{x - 3:.1f} {high:.1f}h6"/>'
                )
            self.drawn.append(marker(kind, x, y, point.told, point.source))
            if point.label:
                place = y + 14 if below else y - 6
                self.drawn.append(
                    f'<text class="at {kind}" x="{x + 6:.1f}" y="{place:.1f}">'
                    f"{escaped(point.label)}</text>"
                )

    def level(self, y: float) -> None:
        """A horizontal line to compare with."""
        self.drawn.append(f'<path class="level" d="M{LEFT} {self._top(y):.1f}H{WIDTH - RIGHT}"/>')

    def stop(self, x: float, said: str) -> None:
        """A vertical line where something ends, and what."""
        left = self._left(x)
        self.drawn.append(
            f'<path class="stop" d="M{left:.1f} {self.top}V{self.height - BOTTOM}"/>'
            f'<text class="at" x="{left + 6:.1f}" y="{self.top + 11}">{escaped(said)}</text>'
        )

    def svg(self) -> str:
        floor = self.height - BOTTOM
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" '
            f'aria-label="{escaped(self.described)}">',
            f'<text class="axis" x="0" y="12">{escaped(self.y.label)}</text>',
            f'<text class="axis" x="{WIDTH - RIGHT}" y="{self.height - 4}" text-anchor="end">'
            f"{escaped(self.x.label)}</text>",
        ]
        for value in ticks(self.y.low, self.y.high, self.y.ticks):
            y = self._top(value)
            parts.append(
                f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">'
                f"{escaped(self.y.write(value))}</text>"
            )
        for value in ticks(self.x.low, self.x.high, self.x.ticks):
            x = self._left(value)
            parts.append(
                f'<path class="tickmark" d="M{x:.1f} {floor}v4"/>'
                f'<text class="tick" x="{x:.1f}" y="{floor + 16}" text-anchor="middle">'
                f"{escaped(self.x.write(value))}</text>"
            )
        parts.append(f'<path class="base" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>')
        return "".join([*parts, *self._legend(), *self.drawn, "</svg>"])

    def _legend(self) -> Iterable[str]:
        left = float(LEFT)
        for kind, name in self.keys:
            yield f'<path class="line {kind}" d="M{left:.0f} 28h{SWATCH - 8}"/>'
            if "bare" not in kind.split():
                yield marker(kind, left + (SWATCH - 8) / 2, 28, "")
            yield f'<text class="key" x="{left + SWATCH - 2:.0f}" y="32">{escaped(name)}</text>'
            left += SWATCH + LETTER * len(name) + 10

    def _left(self, x: float) -> float:
        share = (x - self.x.low) / ((self.x.high - self.x.low) or 1.0)
        return LEFT + share * (WIDTH - RIGHT - LEFT)

    def _top(self, y: float) -> float:
        """Clipped to the frame: a wild value must not be drawn over the text around."""
        share = min(1.0, max(0.0, (y - self.y.low) / ((self.y.high - self.y.low) or 1.0)))
        return self.height - BOTTOM - share * (self.height - BOTTOM - self.top)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers between two bounds, about so many."""
    if high <= low:
        return [low]
    rough = (high - low) / max(1, about)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(times for times in (1, 2, 5, 10) if times * unit >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def marker(
    kind: str, x: float, y: float, told: str = "", source: Mapping[str, str] | None = None
) -> str:
    shape = f'circle class="marker {kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"'
    if kind.startswith(SQUARES):
        shape = f'rect class="marker {kind}" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"'
    return _mark(shape, told, source or {})


def _mark(shape: str, told: str, source: Mapping[str, str]) -> str:
    """An element that says what it shows when it is pointed at, and where that comes from."""
    shape += attributes(source)
    if not told:
        return f"<{shape}/>"
    return f"<{shape}><title>{escaped(told)}</title></{shape.partition(' ')[0]}>"


def attributes(source: Mapping[str, str]) -> str:
    return "".join(f' data-{name}="{escaped(said)}"' for name, said in source.items())
