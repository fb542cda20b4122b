"""The demo's page: what its record shows, in words and charts.

A part that is missing from the record leaves no trace on the page.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..evaluation.plots import smoothed
from .charts import Axis, Chart, PageFigure, Point
from .lens import Heat, text_section
from .page import write_page
from .wording import (
    count,
    interval,
    number,
    scaled,
    side,
    signed,
    signed_interval,
    size,
    zero_in_interval,
)

Record = Mapping[str, Any]
# Letters of the continuation that are shown before the rest is folded away.
SHOWN_OF_WRITING = 1200
# The part of all positions that a smoothed value averages over, on each side: 1 in 20.
SMOOTHING = 20
# Units of the drawing, about one and a half per cent of its width.
SIDE_BY_SIDE = 6
SECTIONS = {
    "reading": "Reading",
    "state": "The state",
    "writing": "Writing",
    "learning": "Learning",
    "books": "Other books",
}


def write_demo_page(path: Path, record: Record, heat: Heat) -> None:
    present = {
        anchor: name
        for anchor, name in SECTIONS.items()
        if anchor == "reading" or record[anchor] is not None
    }
    parts: dict[str, Any] = {}
    if record["state"]:
        parts["use"] = state_use(record["state"])
        parts["history"] = history(record["state"]["history"])
    if record["writing"]:
        parts["text"] = written_text(record["writing"])
        parts["memory"] = memory(record["writing"])
    if record["learning"]:
        parts["learnt"] = learnt(record["learning"])
        parts["curve"] = training_curve(record["learning"]["curve"])
    if record["books"]:
        parts["books"] = books_sentence(record)
    write_page(
        path,
        "demo.html",
        title=f"{record['text']}: holdover demo",
        record=record,
        sections=present,
        carried=state_size(record),
        verdict=verdict(record["difference"]),
        cards=key_numbers(record),
        cost=perplexity_against_flops(record["rows"]),
        positions=loss_by_position(record["loss_by_position"]),
        **parts,
        **text_section(heat),
    )


def row_at(record: Record, twin: str) -> Record:
    """The twin's row at overlap 0."""
    return next(row for row in record["rows"] if row["twin"] == twin and row["overlap"] == 0)


def state_size(record: Record) -> float | None:
    if record["state"]:
        return record["state"]["bytes"]
    return record["writing"]["state_bytes"] if record["writing"] else None


class Verdict(NamedTuple):
    kind: str
    short: str
    details: str


def verdict(difference: Record) -> Verdict:
    """What the paired difference shows, and no more than that."""
    kind, sentence = {
        -1: ("good", "The carried state helps."),
        0: ("open", "The twins do not differ clearly."),
        1: ("bad", "With the carried state it is worse."),
    }[side(difference)]
    value, bounds = difference["value"], signed_interval(difference)
    bounds = f" (95\u00a0% interval {bounds} over {difference['over']})" if bounds else ""
    details = (
        "When both read the same windows without overlap, the loss of the recurrent twin is "
        f"{abs(value):.3f} {difference['unit']} {'below' if value < 0 else 'above'} that of the plain "
        f"twin{bounds}: {zero_in_interval(difference)}."
    )
    return Verdict(kind, sentence, details)


def key_numbers(record: Record) -> list[tuple[str, str, str]]:
    plain, recurrent = row_at(record, "plain"), row_at(record, "recurrent")
    difference, writing, octets = record["difference"], record["writing"], state_size(record)
    cards = [
        ("perplexity, plain twin", number(plain["perplexity"]), interval(plain)),
        ("perplexity, recurrent twin", number(recurrent["perplexity"]), interval(recurrent)),
        (
            f"{difference['unit']}, recurrent minus plain",
            signed(difference["value"], 3),
            signed_interval(difference),
        ),
    ]
    if octets is not None:
        cards.append(("carried between windows", size(octets), "for a text of any length"))
    if writing:
        limit = record["positions"]
        positions = f"with {count(limit, 'position')}" if limit else ""
        cards.append(("tokens written without a break", f"{writing['tokens']:,}", positions))
    return cards


def state_use(state: Record) -> str:
    zeroed, other = side(state["zeroed"]), side(state["other"])
    if other == 0 and zeroed > 0:
        return "The model needs a state, but the state of another passage serves it as well."
    return {
        1: "The model uses its state.",
        0: "No clear sign that the model uses its state.",
        -1: "The model does better with another state than with its own.",
    }[other]


class WrittenText(NamedTuple):
    prompt: str
    first: str
    rest: str


def written_text(writing: Record) -> WrittenText:
    prompt, text = _paragraphs(writing["prompt"]), _paragraphs(writing["text"])
    end = _end_of_first_part(text)
    return WrittenText(prompt, text[:end], text[end:].lstrip())


def _paragraphs(text: str) -> str:
    """Without line ends, which fit a wider page; empty lines stay."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.strip())


def _end_of_first_part(text: str) -> int:
    """Where to fold: at the first white space after enough letters. A short rest is not folded."""
    if len(text) < 1.3 * SHOWN_OF_WRITING:
        return len(text)
    for place in range(SHOWN_OF_WRITING, len(text)):
        if text[place].isspace():
            return place
    return len(text)


def learnt(learning: Record) -> list[tuple[str, Record]]:
    """Perplexities on the held-out end."""
    rows = (
        ("Before", learning["before"]),
        ("After", learning["after"]),
        ("After, state removed", learning["after_zeroed"]),
        ("After, with the state of another passage", learning.get("after_other")),
    )
    return [(label, part) for label, part in rows if part]


def books_sentence(record: Record) -> str:
    return {
        -1: "the carried state helps there, too" if side(record["difference"]) < 0 else "it helps",
        0: "the twins do not differ clearly",
        1: "the recurrent twin is worse",
    }[side(record["books"]["difference"])]


def perplexity_against_flops(rows: Sequence[Record]) -> PageFigure:
    trained = [row for row in rows if not row["note"]]
    borrowed = [row for row in rows if row["note"]]
    legend = [("plain", "plain"), ("recurrent", "recurrent")]
    if borrowed:
        legend.append(("recurrent hollow", borrowed[0]["note"]))
    chart = Chart(
        "Perplexity against FLOPs per token: "
        + "; ".join(f"{_named(row)}: {number(row['perplexity'])}" for row in rows),
        Axis.around(
            "FLOPs per token",
            [row["flops_per_token"] for row in rows],
            margin=0.12,
            format=lambda v: scaled(v).replace(" million", " M").replace(" billion", " G"),
            ticks=4,
        ),
        Axis.around(
            "Perplexity", [row[key] for row in rows for key in ("low", "high", "perplexity")]
        ),
        height=290,
        legend=legend,
    )
    plain, recurrent = (
        [row for row in trained if row["twin"] == twin] for twin in ("plain", "recurrent")
    )
    by_cost = sorted(plain, key=lambda row: row["flops_per_token"])
    chart.line("plain", [(row["flops_per_token"], row["perplexity"]) for row in by_cost])
    chart.points("plain", [_point(row) for row in plain])
    # The state costs so little that the intervals of one twin would hide those of the other.
    for kind, own in (("recurrent", recurrent), ("recurrent hollow", borrowed)):
        chart.points(kind, [_point(row) for row in own], shift=SIDE_BY_SIDE, below=True)
    return PageFigure(
        "Perplexity against its cost",
        [chart],
        "Lower and further left is better. The number at a point is the overlap in tokens, which are "
        "read again in every window. Points of the recurrent twin are moved slightly to the right. "
        "Bars: 95\u00a0% intervals of each number by itself. Both twins read the same tokens, so their "
        "difference is known much more precisely than two bars suggest.",
    )


def loss_by_position(losses: Mapping[str, Sequence[float | None]]) -> PageFigure:
    """The losses of both twins, and below them the difference, which is too small to see above."""
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
        Axis.around("Nats per token", [v for line in lines.values() for v in line[1:]]),
        height=250,
        legend=[(f"{twin} bare", twin) for twin in lines],
    )
    for twin, line in lines.items():
        chart.line(f"{twin} bare", _with_positions(line))
    gap = smoothed(raw["plain"] - raw["recurrent"], reach)
    below = Chart(
        "Loss of the plain twin minus loss of the recurrent twin, by position in the window",
        positions,
        Axis.around("Nats per token saved by the recurrent twin", [0.0, *gap[1:]], ticks=3),
        height=170,
    )
    below.level(0)
    below.line("recurrent bare", _with_positions(gap))
    return PageFigure(
        "Loss by position in a window",
        [chart, below],
        f"Loss at overlap 0, smoothed: a mean over up to {reach} positions on each side, fewer at the "
        "beginning. The plain twin starts every window without any earlier text. A first value off "
        "the scale is drawn at the edge.",
    )


def history(points: Sequence[Record]) -> PageFigure | None:
    if not points:
        return None
    values = [point[key] for point in points for key in ("above_own", "low", "high")]
    least, most = (pick(point["windows"] for point in points) for pick in (min, max))
    chart = Chart(
        "Loss above that with the own state, by windows of history",
        Axis("Windows of history in the state", least - 0.3, most + 0.3, ticks=min(most, 8) + 1),
        Axis.around("Nats per token above the state of the whole past", [0.0, *values], ticks=4),
    )
    chart.level(0)
    chart.line("recurrent", [(point["windows"], point["above_own"]) for point in points])
    for point in points:
        title = f"{point['windows']}: {signed(point['above_own'], 4)} {signed_interval(point, 4)}"
        bounds = point["low"], point["high"]
        chart.points(
            "recurrent", [Point(point["windows"], point["above_own"], *bounds, title=title)]
        )
    return PageFigure(
        "How much history is enough",
        [chart],
        "A state made from only the last few windows, compared with one made from the whole past. At "
        "zero, more history would change nothing.",
    )


def memory(writing: Record) -> PageFigure | None:
    points = [(float(tokens), float(octets)) for tokens, octets in writing["memory"]]
    if len(points) < 2:
        return None
    unit = 1e9 if max(octets for _, octets in points) >= 2e9 else 1e6
    chart = Chart(
        f"Memory while writing: {size(points[0][1])} at first, {size(points[-1][1])} at the end",
        Axis("Tokens written", 0, points[-1][0], format="{:,.0f}".format),
        Axis(
            f"Memory of the process ({'GB' if unit == 1e9 else 'MB'})",
            0,
            1.25 * max(octets for _, octets in points),
            format=lambda octets: f"{octets / unit:g}",
        ),
        height=230,
    )
    chart.line("recurrent bare", points)
    if writing.get("stock_tokens") and writing["stock_tokens"] < points[-1][0]:
        chart.stop(writing["stock_tokens"], "the stock model stops")
    growth = points[-1][1] / points[0][1] - 1
    return PageFigure(
        "Memory while it writes",
        [chart],
        f"{size(points[0][1])} after {points[0][0]:,.0f} tokens, {size(points[-1][1])} after "
        f"{points[-1][0]:,.0f}: {signed(100 * growth, 1)}\u00a0%.",
    )


def training_curve(curve: Sequence[Sequence[float]]) -> PageFigure | None:
    if not curve:
        return None
    steps = int(max(step for step, _ in curve))
    chart = Chart(
        f"Training loss: {number(curve[0][1])} at first, {number(curve[-1][1])} at the end",
        Axis("Step", 0, steps, ticks=min(5, steps)),
        Axis.around("Training loss (nats per token)", [loss for _, loss in curve], ticks=4),
        height=230,
    )
    chart.line("recurrent bare", [(step, loss) for step, loss in curve])
    return PageFigure(
        "Learning",
        [chart],
        "The loss of each step, not smoothed. Steps read different passages, so the line is rough.",
    )


def _point(row: Record) -> Point:
    title = f"{_named(row)}: {number(row['perplexity'])} {interval(row)}"
    bounds = row["low"], row["high"]
    return Point(row["flops_per_token"], row["perplexity"], *bounds, str(row["overlap"]), title)


def _named(row: Record) -> str:
    return f"{row['twin']} at overlap {row['overlap']}"


def _with_positions(values: np.ndarray) -> list[tuple[float, float | None]]:
    return [(place + 1.0, float(value)) for place, value in enumerate(values)]
