"""The page's figures, each from its part of the record."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..evaluation.plots import smoothed
from .charts import Axis, Chart, Point
from .wording import interval, number, scaled, signed, signed_interval, size

# One position in so many, on each side, goes into a smoothed value.
SMOOTHING = 20
# Units of the drawing, about one and a half per cent of its width.
SIDE_BY_SIDE = 6


def figure(svg: str, title: str, caption: str) -> str:
    return f"<figure><h3>{title}</h3>{svg}<figcaption>{caption}</figcaption></figure>"


def perplexity_against_flops(rows: Sequence[Mapping[str, Any]]) -> str:
    trained = [row for row in rows if not row["note"]]
    borrowed = [row for row in rows if row["note"]]
    keys = [("plain", "plain"), ("recurrent", "recurrent")]
    if borrowed:
        keys.append(("recurrent hollow", borrowed[0]["note"]))
    chart = Chart(
        "Perplexity against FLOPs a token: "
        + "; ".join(f"{_named(row)}: {number(row['perplexity'])}" for row in rows),
        Axis.around(
            "FLOPs a token",
            [row["flops_per_token"] for row in rows],
            margin=0.12,
            write=_short_scale,
            ticks=4,
        ),
        Axis.around(
            "Perplexity", [row[key] for row in rows for key in ("low", "high", "perplexity")]
        ),
        height=290,
        keys=keys,
    )
    plain, recurrent = (
        [row for row in trained if row["twin"] == twin] for twin in ("plain", "recurrent")
    )
    chart.line("plain", [(row["flops_per_token"], row["perplexity"]) for row in _by_cost(plain)])
    chart.points("plain", [_point(row) for row in plain])
    # The state costs so little that one twin's bars would hide the other's.
    for kind, own in (("recurrent", recurrent), ("recurrent hollow", borrowed)):
        chart.points(kind, [_point(row) for row in own], shift=SIDE_BY_SIDE, below=True)
    return figure(
        chart.svg(),
        "What a perplexity costs",
        "Lower and further left is better. Numbers beside points: tokens of overlap, read again in "
        "every window. The recurrent twin is drawn a hair to the right of its cost. Bars: "
        "95&nbsp;% intervals of each number by itself; twins read the same tokens, so their "
        "difference is known far more closely than two bars suggest.",
    )


def loss_by_position(losses: Mapping[str, Sequence[float | None]]) -> str:
    """Both twins' losses, and below them what lies between, which is too little to see above."""
    raw = {
        twin: np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        for twin, values in losses.items()
    }
    reach = max(1, len(raw["plain"]) // SMOOTHING)
    lines = {twin: smoothed(values, reach) for twin, values in raw.items()}
    positions = Axis("Position in the window (tokens)", 0, len(raw["plain"]))
    chart = Chart(
        "Loss by position in the window, for both twins",
        positions,
        Axis.around("Nats a token", [v for line in lines.values() for v in line[1:]]),
        height=250,
        keys=[(f"{twin} bare", twin) for twin in lines],
    )
    for twin, line in lines.items():
        chart.line(f"{twin} bare", _with_positions(line))
    gap = smoothed(raw["plain"] - raw["recurrent"], reach)
    below = Chart(
        "Loss of the plain twin minus loss of the recurrent twin, by position in the window",
        positions,
        Axis.around("Nats a token saved by the recurrent twin", [0.0, *gap[1:]], ticks=3),
        height=170,
    )
    below.level(0)
    below.line("recurrent bare", _with_positions(gap))
    return figure(
        chart.svg() + below.svg(),
        "Where in a window",
        f"Loss at overlap 0, smoothed: a mean over up to {reach} positions on each side, fewer at the "
        "beginning. The plain twin starts every window knowing nothing of what came before. A first "
        "value off the scale is drawn at the edge.",
    )


def history(points: Sequence[Mapping[str, Any]]) -> str:
    values = [point[key] for point in points for key in ("above_own", "low", "high")]
    least, most = (pick(point["windows"] for point in points) for pick in (min, max))
    chart = Chart(
        "Loss above that with the own state, by windows of history",
        Axis(
            "Windows of history the state was given",
            least - 0.3,
            most + 0.3,
            ticks=min(most, 8) + 1,
        ),
        Axis.around("Nats a token above the state of the whole past", [0.0, *values], ticks=4),
    )
    chart.level(0)
    chart.line("recurrent", [(point["windows"], point["above_own"]) for point in points])
    chart.points(
        "recurrent",
        [
            Point(
                point["windows"],
                point["above_own"],
                point["low"],
                point["high"],
                told=f"{point['windows']}: {signed(point['above_own'], 4)} "
                f"{signed_interval({'low': point['low'], 'high': point['high']}, 4)}",
            )
            for point in points
        ],
    )
    return figure(
        chart.svg(),
        "How much past is enough",
        "A state made from only the last few windows, against one made from the whole past. At zero, "
        "more history would change nothing.",
    )


def memory(writing: Mapping[str, Any]) -> str:
    points = [(float(tokens), float(octets)) for tokens, octets in writing["memory"]]
    if len(points) < 2:
        return ""
    unit = 1e9 if max(octets for _, octets in points) >= 2e9 else 1e6
    chart = Chart(
        f"Memory while writing: {size(points[0][1])} at first, {size(points[-1][1])} at the end",
        Axis("Tokens written", 0, points[-1][0], write="{:,.0f}".format),
        Axis(
            f"Memory of the process ({'GB' if unit == 1e9 else 'MB'})",
            0,
            1.25 * max(octets for _, octets in points),
            write=lambda octets: f"{octets / unit:g}",
        ),
        height=230,
    )
    chart.line("recurrent bare", points)
    if writing.get("stock_tokens") and writing["stock_tokens"] < points[-1][0]:
        chart.stop(writing["stock_tokens"], "the stock model stops")
    grown = points[-1][1] / points[0][1] - 1
    return figure(
        chart.svg(),
        "Memory while it writes",
        f"{size(points[0][1])} after {points[0][0]:,.0f} tokens, {size(points[-1][1])} after "
        f"{points[-1][0]:,.0f}: {signed(100 * grown, 1)}&nbsp;%.",
    )


def learning(curve: Sequence[Sequence[float]]) -> str:
    steps = int(max(step for step, _ in curve))
    chart = Chart(
        f"Training loss: {number(curve[0][1])} at first, {number(curve[-1][1])} at the end",
        Axis("Step", 0, steps, ticks=min(5, steps)),
        Axis.around("Training loss (nats a token)", [loss for _, loss in curve], ticks=4),
        height=230,
    )
    chart.line("recurrent bare", [(step, loss) for step, loss in curve])
    return figure(
        chart.svg(),
        "Learning",
        "Each step&rsquo;s loss on the passages it read, as it came. Steps read different "
        "passages, so the line is rough.",
    )


def _point(row: Mapping[str, Any]) -> Point:
    told = f"{_named(row)}: {number(row['perplexity'])} {interval(row)}"
    return Point(
        row["flops_per_token"],
        row["perplexity"],
        row["low"],
        row["high"],
        str(row["overlap"]),
        told,
    )


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['twin']} at overlap {row['overlap']}"


def _by_cost(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda row: row["flops_per_token"])


def _with_positions(values: np.ndarray) -> list[tuple[float, float | None]]:
    return [(place + 1.0, float(value)) for place, value in enumerate(values)]


def _short_scale(value: float) -> str:
    return scaled(value).replace(" million", " M").replace(" billion", " G")
