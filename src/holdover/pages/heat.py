"""The novel's text, each token coloured by what the carried state saved or cost at it.

* A token is an <i>; those that share a cut character are one. What stands between two <i> is white
  space, so the text of the whole is the novel, letter by letter.
* Numbers are not in the tags: each window carries one list, in hundredths of a bit, and the page's
  script looks up the n-th <i> in it. That is a third of the size.
* A window is a block of its own that a browser lays out only when it comes into view.
"""

import codecs
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .wording import MINUS, count, escaped, signed

# Shares of all tokens that stay below the first, second and third colour.
SHARES = (0.6, 0.85, 0.97)
# Less than this is nothing, whatever its rank.
LEAST_BITS = 0.05
DEFAULT_LEVELS = (0.25, 1.0, 3.0)
PASSAGES = 10
# Letters shown on each side of a passage's strongest token.
AROUND = 70
# More bars than this are thinner than a phone's pixels.
MOST_BARS = 360


@dataclass(frozen=True)
class Heat:
    """The novel's tokens, in order."""

    texts: list[bytes]  # what each token stands for; a character may be cut between two
    saved: (
        np.ndarray
    )  # bits that the carried state saved (or, below zero, cost); NaN: not predicted
    bits: np.ndarray  # bits of the token with the state
    window: np.ndarray  # the number of the window that read it


@dataclass(frozen=True)
class Piece:
    """A token, or the few that share cut characters: their numbers are summed."""

    text: str
    saved: float
    bits: float
    window: int
    tokens: int


@dataclass(frozen=True)
class WindowOfText:
    number: int
    pieces: list[Piece]

    @property
    def saved(self) -> float:
        return float(sum(piece.saved for piece in self.pieces if math.isfinite(piece.saved)))


def windows(heat: Heat) -> list[WindowOfText]:
    found: list[WindowOfText] = []
    for piece in _pieces(heat):
        if not found or found[-1].number != piece.window:
            found.append(WindowOfText(piece.window, []))
        found[-1].pieces.append(piece)
    return found


def _pieces(heat: Heat) -> Iterator[Piece]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, first = "", 0
    for place, token in enumerate(heat.texts):
        last = place == len(heat.texts) - 1
        text += decoder.decode(token, final=last)
        pending, _ = decoder.getstate()
        if pending and not last:
            continue
        part = slice(first, place + 1)
        yield Piece(
            text,
            _sum(heat.saved[part]),
            _sum(heat.bits[part]),
            int(heat.window[first]),
            place + 1 - first,
        )
        text, first = "", place + 1


def _sum(values: np.ndarray) -> float:
    """Of what is known; NaN where nothing is."""
    known = values[np.isfinite(values)]
    return float(known.sum()) if len(known) else math.nan


def levels(saved: np.ndarray) -> tuple[float, float, float]:
    """Bits from which a token has the first, second and third colour: round, and rising."""
    known = np.abs(saved[np.isfinite(saved)])
    if not len(known):
        return DEFAULT_LEVELS
    rising: list[float] = []
    for quantile in np.quantile(known, SHARES):
        least = 2 * rising[-1] if rising else LEAST_BITS
        rising.append(max(least, float(f"{quantile:.1g}")))
    first, second, third = rising
    return first, second, third


def colour(saved: float, bounds: Sequence[float]) -> str:
    """The CSS class: s1 to s3 for saved, c1 to c3 for cost, n where nothing was predicted."""
    if not math.isfinite(saved):
        return "n"
    strength = sum(abs(saved) >= bound for bound in bounds)
    return "" if strength == 0 else f"{'s' if saved > 0 else 'c'}{strength}"


def novel(found: Sequence[WindowOfText], bounds: Sequence[float]) -> str:
    return "".join(
        f'<div class="w" id="w{window.number}" data-w="{window.number}" '
        f'data-m="{signed(window.saved, 1)} bits" '
        f'data-n="{" ".join(_numbers(piece) for piece in window.pieces)}">'
        f"{''.join(_span(piece, bounds) for piece in window.pieces)}</div>"
        for window in found
    )


def _span(piece: Piece, bounds: Sequence[float]) -> str:
    word = piece.text.lstrip()
    if not word:
        return f"<i>{escaped(piece.text)}</i>"
    # Between words there is no colour, so that each stands for itself.
    before = piece.text[: len(piece.text) - len(word)]
    name = colour(piece.saved, bounds)
    attribute = f" class={name}" if name else ""
    return f"{escaped(before)}<i{attribute}>{escaped(word)}</i>"


def _numbers(piece: Piece) -> str:
    written = ["" if not math.isfinite(v) else f"{100 * v:.0f}" for v in (piece.saved, piece.bits)]
    if piece.tokens > 1:
        written.append(str(piece.tokens))
    return ",".join(written)


def legend(bounds: Sequence[float]) -> str:
    first, second, third = (f"{bound:g}" for bound in bounds)
    steps = [
        ("c3", f"cost {third} bits or more"),
        ("c2", f"{second} to {third}"),
        ("c1", f"{first} to {second}"),
        ("", f"less than {first} either way"),
        ("s1", f"{first} to {second}"),
        ("s2", f"{second} to {third}"),
        ("s3", f"saved {third} bits or more"),
    ]
    items = "".join(f'<li><i class="{name}">{said}</i></li>' for name, said in steps)
    return f'<ul class="legend text" aria-label="Legend">{items}</ul>'


def overview(found: Sequence[WindowOfText]) -> str:
    """The whole novel as a strip of bars, one a window (or a few windows), that lead to the text."""
    together = max(1, math.ceil(len(found) / MOST_BARS))
    bars = [found[start : start + together] for start in range(0, len(found), together)]
    heights = [sum(window.saved for window in bar) for bar in bars]
    up, down = max([0.0, *heights]), -min([0.0, *heights])
    scale = 100 / ((up + down) or 1.0)
    drawn = []
    for place, (bar, height) in enumerate(zip(bars, heights, strict=True)):
        top = (up - max(height, 0.0)) * scale
        named = f"Window {bar[0].number}"
        if len(bar) > 1:
            named = f"Windows {bar[0].number} to {bar[-1].number}"
        drawn.append(
            f'<a href="#w{bar[0].number}" tabindex="-1"><title>{named}: {signed(height, 1)} bits'
            f'</title><rect class="hit" x="{place}" width="1" height="100"/>'
            f'<rect class="{"up" if height >= 0 else "down"}" x="{place + 0.12:.2f}" '
            f'y="{top:.2f}" width=".76" height="{max(abs(height) * scale, 0.4):.2f}"/></a>'
        )
    return (
        f'<svg class="overview" viewBox="0 0 {max(1, len(bars))} 100" preserveAspectRatio="none" '
        f'role="img" aria-label="Bits saved in each window, from the first to the last">'
        f"{''.join(drawn)}</svg>"
    )


def passages(found: Sequence[WindowOfText]) -> str:
    """Links to the windows where the state helped most, and where it hurt most."""
    ranked = sorted(found, key=lambda window: window.saved)
    helped = [window for window in reversed(ranked) if window.saved > 0][:PASSAGES]
    hurt = [window for window in ranked if window.saved < 0][:PASSAGES]
    return (
        f'<div class="pair">{_listed("Where it helped most", helped, 1)}'
        f"{_listed('Where it hurt most', hurt, -1)}</div>"
    )


def _listed(heading: str, chosen: Sequence[WindowOfText], sign: int) -> str:
    kind = "saved" if sign > 0 else "cost"
    if not chosen:
        return f"<div><h3>{heading}</h3><p>No window: it {kind} nothing anywhere.</p></div>"
    items = "".join(
        f'<li><a href="#w{window.number}"><b>window {window.number}</b> '
        f'<span class="{kind}">{signed(window.saved, 1)} bits</span></a>'
        f"<q>{_excerpt(window, sign)}</q></li>"
        for window in chosen
    )
    few = ""
    if len(chosen) < PASSAGES:
        few = f"<p>In no more than {count(len(chosen), 'window')}.</p>"
    return f'<div><h3>{heading}</h3><ol class="passages">{items}</ol>{few}</div>'


def _excerpt(window: WindowOfText, sign: int) -> str:
    """The window's strongest word, marked, with what stands around it."""
    words = [
        place
        for place, piece in enumerate(window.pieces)
        if piece.text.strip() and math.isfinite(piece.saved)
    ]
    if not words:
        return ""
    strongest = max(words, key=lambda place: sign * window.pieces[place].saved)
    piece = window.pieces[strongest]
    before = "".join(other.text for other in window.pieces[:strongest])
    before += piece.text[: len(piece.text) - len(piece.text.lstrip())]
    after = "".join(other.text for other in window.pieces[strongest + 1 :])
    if len(before) > AROUND:
        before = "…" + before[-AROUND:].partition(" ")[2]
    if len(after) > AROUND:
        after = after[:AROUND].rpartition(" ")[0].rstrip(",;:. ") + "…"
    said = f"{'saved' if piece.saved > 0 else 'cost'} {abs(piece.saved):.1f} bits here"
    return (
        f"{_in_one_line(before)}<mark title='{said}'>{escaped(piece.text.strip())}</mark>"
        f"{_in_one_line(after)}"
    )


def _in_one_line(text: str) -> str:
    return escaped(text.replace("\n", " "))


def summary(heat: Heat) -> str:
    """How often it helped and hurt, and what that comes to."""
    known = heat.saved[np.isfinite(heat.saved)]
    if not len(known):
        return "Nothing was predicted."
    total = float(known.sum())
    helped, hurt = (100 * float((sign * known > 0).mean()) for sign in (1, -1))
    verb = "saved" if total >= 0 else "cost"
    each = signed(float(known.mean()), 3).lstrip(f"+{MINUS}")
    return (
        f"Over {count(len(known), 'predicted token')} the state {verb} {abs(total):,.0f} bits, "
        f"{each} a token: it helped at {helped:.0f}&nbsp;% of them and hurt at {hurt:.0f}&nbsp;%."
    )
