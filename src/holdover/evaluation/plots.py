"""Figures of an evaluation, each as PNG and SVG, from plain data.

* matplotlib is imported on use and never through pyplot, so the caller's backend, windows and figure
  list stay untouched; style settings hold only while a figure is drawn.
* Equal data give an equal SVG: a fixed salt for its ids, no date.
* Series differ in colour (Okabe and Ito's palette), marker and line style, so colour is not needed.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Paths = tuple[Path, Path]
# FLOPs per token, perplexity, its bounds, and a label.
Point = tuple[float, float, float | None, float | None, str]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
STYLE = {
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "font.size": 10.0,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "svg.hashsalt": "holdover",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
}
# Shorter series are not smoothed.
SMOOTHED_FROM = 100


def perplexity_against_flops(
    path_stem: str | Path,
    series: Mapping[str, Sequence[Point]],
    measure: str = "Perplexity per word",
) -> Paths:
    """Perplexity over forward FLOPs, with intervals if known."""
    need_values(series, "perplexity against FLOPs")
    exponent = math.floor(
        math.log10(max(point[0] for points in series.values() for point in points))
    )

    def draw(panels: "Sequence[Axes]") -> None:
        (axes,) = panels
        for number, (name, points) in enumerate(series.items()):
            points = sorted(points, key=lambda point: point[0])
            # Shift series slightly, so that models of equal cost do not hide each other.
            aside = 1 + 0.006 * (number - (len(series) - 1) / 2)
            flops = [aside * point[0] / 10**exponent for point in points]
            axes.plot(flops, [point[1] for point in points], label=name, **look_of(number))
            for x, (_, value, low, high, label) in zip(flops, points, strict=True):
                _bar(axes, x, value, low, high, number)
                # Series lie above each other: every second one has its labels below the points.
                side, up = ("left", 4) if number % 2 == 0 else ("right", -4)
                axes.annotate(
                    label,
                    (x, value),
                    xytext=(7 if side == "left" else -7, up),
                    textcoords="offset points",
                    ha=side,
                    va="bottom" if up > 0 else "top",
                    fontsize=8,
                    color=_colour(number),
                )
        axes.set_xlabel(
            rf"Forward FLOPs per token ($\times\,10^{{{exponent}}}$); labels: overlap in tokens"
        )
        axes.set_ylabel(measure)
        axes.margins(x=0.1, y=0.1)
        axes.legend()

    return write_figure(path_stem, draw)


def loss_by_position(path_stem: str | Path, series: Mapping[str, np.ndarray]) -> Paths:
    """Mean loss of the targets at each position of a window; positions never scored are NaN."""
    need_values(series, "loss by position")

    def draw(panels: "Sequence[Axes]") -> None:
        (axes,) = panels
        for number, (name, values) in enumerate(series.items()):
            values = np.asarray(values, dtype=np.float64)
            positions = np.arange(1, len(values) + 1)
            style = {"color": _colour(number), "linestyle": _line(number), "label": name}
            if len(values) > SMOOTHED_FROM:
                axes.plot(positions, values, color=_colour(number), linewidth=0.6, alpha=0.3)
                values = smoothed(values, len(values) // 40)
            axes.plot(positions, values, **style)
        axes.set_xlabel("Position in the window (tokens)")
        axes.set_ylabel("Loss (nats per token)")
        axes.margins(x=0.02)
        axes.legend()

    return write_figure(path_stem, draw)


def loss_by_distance(
    path_stem: str | Path, series: Mapping[str, Sequence[tuple[float, float]]]
) -> Paths:
    """Mean loss between consecutive distances from the start of the text."""
    need_values(series, "loss by distance")

    def draw(panels: "Sequence[Axes]") -> None:
        (axes,) = panels
        for number, (name, points) in enumerate(series.items()):
            axes.plot(*zip(*points, strict=True), label=name, **look_of(number))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("Tokens read before, up to")
        axes.set_ylabel("Loss (nats per token)")
        axes.legend()

    return write_figure(path_stem, draw)


def training_curves(
    path_stem: str | Path,
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    measure: str = "Loss (nats per token)",
    unit: str = "tokens",
) -> Paths:
    """Lines of a training log: `loss` smoothed as a thin line, `valid_loss` as markers."""
    need_values(
        {
            name: [*_logged(lines, "loss")[0], *_logged(lines, "valid_loss")[0]]
            for name, lines in runs.items()
        },
        "training curves",
    )

    def draw(panels: "Sequence[Axes]") -> None:
        from matplotlib.ticker import EngFormatter

        (axes,) = panels
        for number, (name, lines) in enumerate(runs.items()):
            tokens, losses = _logged(lines, "loss")
            if len(losses) > SMOOTHED_FROM:
                losses = smoothed(losses, len(losses) // 50)
            look = look_of(number)
            marker = look.pop("marker")
            if len(losses):
                thin = {"linewidth": 0.9, "label": f"{name}, training"}
                axes.plot(tokens, losses, **look | thin)
            tokens, losses = _logged(lines, "valid_loss")
            if len(losses):
                look |= {"marker": marker, "linestyle": "none", "label": f"{name}, validation"}
                axes.plot(tokens, losses, **look, markeredgecolor="white", markersize=7)
        axes.set_xlabel(f"Training {unit}")
        axes.set_ylabel(measure)
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
        axes.legend()

    return write_figure(path_stem, draw)


def state_use(
    path_stem: str | Path,
    history: Sequence[tuple[float, float, float | None, float | None]],
    gradient: Sequence[tuple[float, float]],
    difference: str = "Loss difference (nats per token)",
) -> Paths:
    """Left: the effect of more windows of history. Right: how far back gradients reach."""
    need_values({"history": history, "gradient": gradient}, "use of the state")

    def draw(panels: "Sequence[Axes]") -> None:
        from matplotlib.ticker import MaxNLocator

        left, right = panels
        rows = sorted(history, key=lambda row: row[0])
        left.axhline(0, color="#444444", linewidth=0.8)
        left.plot([row[0] for row in rows], [row[1] for row in rows], **look_of(0))
        for windows, value, low, high in rows:
            _bar(left, windows, value, low, high, 0)
        left.set_xlabel("History that the state was given (windows)")
        left.set_ylabel(difference)
        pairs = sorted(gradient, key=lambda pair: pair[0])
        right.plot([pair[0] for pair in pairs], [pair[1] for pair in pairs], **look_of(1))
        # Gradients decay exponentially; a logarithmic axis cannot show a norm of zero.
        if all(norm > 0 for _, norm in pairs):
            right.set_yscale("log")
        right.set_xlabel("Distance (windows back)")
        right.set_ylabel("Gradient of the loss by that state (norm)")
        for axes in panels:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return write_figure(path_stem, draw, panels=2)


def smoothed(values: np.ndarray, reach: int) -> np.ndarray:
    """Mean over `reach` neighbours on each side, and over fewer at the beginning.

    At the beginning the loss is steep and convex, so a wide mean would lie above it. At the end it is
    flat, so a one-sided mean is accurate. NaN is left out of means and stays NaN.
    """
    known = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    places = np.arange(len(values))
    near = np.minimum(reach, places // 4)
    first, last = places - near, np.minimum(places + near + 1, len(values))
    total, count = sums[last] - sums[first], counts[last] - counts[first]
    return np.where(known, total / np.maximum(count, 1), np.nan)


def need_values(data: Mapping[str, Any], figure: str) -> None:
    empty = [name for name, values in data.items() if len(values) == 0]
    if empty or not data:
        raise ValueError(
            f"The figure of {figure} has no data"
            f"{' for ' + ', '.join(empty) if empty else ''}: give each series at least one value."
        )


def _logged(lines: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(line["tokens"], line[key]) for line in lines if line.get(key) is not None]
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def _line(number: int) -> Any:
    return LINES[number % len(LINES)]


def look_of(number: int) -> dict[str, Any]:
    marker = MARKERS[number % len(MARKERS)]
    return {"color": _colour(number), "linestyle": _line(number), "marker": marker}


def _bar(
    axes: "Axes", x: float, value: float, low: float | None, high: float | None, number: int
) -> None:
    if low is None or high is None:
        return
    # A percentile interval may exclude its estimate; the arms of a bar cannot be negative.
    arms = [[max(0.0, value - low)], [max(0.0, high - value)]]
    axes.errorbar([x], [value], yerr=arms, fmt="none", ecolor=_colour(number), capsize=2.5, lw=1)


def write_figure(
    path_stem: str | Path,
    draw: "Callable[[Sequence[Axes]], None]",
    panels: int = 1,
    stacked: bool = False,
) -> Paths:
    """Draw on a number of panels, next to or above each other, and write the figure."""
    import matplotlib.style
    from matplotlib.figure import Figure

    stem = Path(path_stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    with matplotlib.style.context(["default", STYLE]):
        size = (9.0, 3.6)
        if panels == 1 or stacked:
            size = (6.4, 4.0 if panels == 1 else 1.0 + 1.7 * panels)
        figure = Figure(figsize=size)
        rows, columns = (panels, 1) if stacked else (1, panels)
        draw([figure.add_subplot(rows, columns, place + 1) for place in range(panels)])
        for path, metadata in zip(paths, ({"Software": None}, {"Date": None}), strict=True):
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=metadata)
            write_atomically(path, content.getvalue())
    return paths
