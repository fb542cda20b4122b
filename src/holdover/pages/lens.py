"""The lens as a page: a text whose tokens are coloured by what the carried state saved or cost.

* A token is an <i>; tokens that share a cut character are one. Only white space stands between two
  <i>, so the page holds the text letter by letter.
* Numbers are not in the tags: each window carries one list, in hundredths of a bit, and the page's
  script looks up the n-th <i> in it. This makes the page three times smaller.
* A window is a block of its own that a browser lays out only when it comes into view.
"""

import codecs
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ..evaluation.token_lens import Lens
from ..text.tokens import Encoder
from .page import write_page
from .wording import MINUS, count, signed

Against = Literal["without", "other"]
AGAINST = {
    "without": "the same window read as the first of a document",
    "other": "the same window read with another state: the state of {other}",
}
# Shares of all tokens that stay below the first, second and third colour.
SHARES = (0.6, 0.85, 0.97)
# A smaller difference gets no colour, whatever its rank.
LEAST_BITS = 0.05
DEFAULT_LEVELS = (0.25, 1.0, 3.0)
PASSAGES = 10
# Letters shown on each side of a passage's strongest token.
AROUND = 70
# More bars than this would be thinner than a phone's pixels.
MOST_BARS = 360


@dataclass(frozen=True)
class Heat:
    """The tokens of a text, in order."""

    texts: list[bytes]
    """The bytes of each token; a character may be cut between two."""
    saved: np.ndarray
    """Bits that the carried state saved, negative if it cost bits; NaN: not predicted."""
    bits: np.ndarray
    """Bits of the token with the state."""
    window: np.ndarray
    """The number of the window that read it."""


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

    def numbers(self) -> str:
        """For the page's script: saved and own bits of each piece, and its tokens if several."""
        return " ".join(map(_numbers, self.pieces))

    def spans(self, bounds: Sequence[float]) -> Iterator[tuple[str, str, str]]:
        """White space, the colour's CSS class and the word of each piece.

        White space between words has no colour, so that each word stands for itself.
        """
        for piece in self.pieces:
            word = piece.text.lstrip()
            if word:
                yield piece.text[: -len(word)], colour(piece.saved, bounds), word
            else:
                yield "", "", piece.text


def windows(heat: Heat) -> list[WindowOfText]:
    made: list[WindowOfText] = []
    for piece in _pieces(heat):
        if not made or made[-1].number != piece.window:
            made.append(WindowOfText(piece.window, []))
        made[-1].pieces.append(piece)
    return made


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
        saved, bits = _sum(heat.saved[part]), _sum(heat.bits[part])
        yield Piece(text, saved, bits, int(heat.window[first]), place + 1 - first)
        text, first = "", place + 1


def _sum(values: np.ndarray) -> float:
    """The sum of the known values; NaN if none is known."""
    known = values[np.isfinite(values)]
    return float(known.sum()) if len(known) else math.nan


def _numbers(piece: Piece) -> str:
    written = ["" if not math.isfinite(v) else f"{100 * v:.0f}" for v in (piece.saved, piece.bits)]
    if piece.tokens > 1:
        written.append(str(piece.tokens))
    return ",".join(written)


def levels(saved: np.ndarray) -> tuple[float, float, float]:
    """Bits from which a token has the first, second and third colour: round and increasing."""
    known = np.abs(saved[np.isfinite(saved)])
    if not len(known):
        return DEFAULT_LEVELS
    bounds: list[float] = []
    for quantile in np.quantile(known, SHARES):
        least = 2 * bounds[-1] if bounds else LEAST_BITS
        bounds.append(max(least, float(f"{quantile:.1g}")))
    first, second, third = bounds
    return first, second, third


def colour(saved: float, bounds: Sequence[float]) -> str:
    """The CSS class: s1 to s3 for saved, c1 to c3 for cost, n for tokens without a prediction."""
    if not math.isfinite(saved):
        return "n"
    strength = sum(abs(saved) >= bound for bound in bounds)
    return "" if strength == 0 else f"{'s' if saved > 0 else 'c'}{strength}"


def legend(bounds: Sequence[float]) -> list[tuple[str, str]]:
    """CSS classes and the bits they stand for."""
    first, second, third = (f"{bound:g}" for bound in bounds)
    return [
        ("c3", f"cost {third} bits or more"),
        ("c2", f"{second} to {third}"),
        ("c1", f"{first} to {second}"),
        ("", f"less than {first} either way"),
        ("s1", f"{first} to {second}"),
        ("s2", f"{second} to {third}"),
        ("s3", f"saved {third} bits or more"),
    ]


class Bar(NamedTuple):
    """One window, or a few, in the overview of the whole text."""

    first: int
    title: str
    saved: float
    top: float
    height: float


def overview(shown: Sequence[WindowOfText]) -> list[Bar]:
    """The whole text as bars in a box that is 100 high."""
    together = max(1, math.ceil(len(shown) / MOST_BARS))
    groups = [shown[start : start + together] for start in range(0, len(shown), together)]
    sums = [sum(window.saved for window in group) for group in groups]
    up, down = max([0.0, *sums]), -min([0.0, *sums])
    scale = 100 / ((up + down) or 1.0)
    bars = []
    for group, saved in zip(groups, sums, strict=True):
        first, last = group[0].number, group[-1].number
        named = f"Window {first}" if first == last else f"Windows {first} to {last}"
        top, height = (up - max(saved, 0.0)) * scale, max(abs(saved) * scale, 0.4)
        bars.append(Bar(first, f"{named}: {signed(saved, 1)} bits", saved, top, height))
    return bars


def passages(shown: Sequence[WindowOfText]) -> tuple[list[WindowOfText], list[WindowOfText]]:
    """The windows where the state helped most, and where it hurt most."""
    ranked = sorted(shown, key=lambda window: window.saved)
    helped = [window for window in reversed(ranked) if window.saved > 0]
    hurt = [window for window in ranked if window.saved < 0]
    return helped[:PASSAGES], hurt[:PASSAGES]


class Excerpt(NamedTuple):
    """A window's strongest word and the text around it, in one line."""

    before: str = ""
    word: str = ""
    after: str = ""
    title: str = ""


def excerpt(window: WindowOfText, sign: int) -> Excerpt:
    words = [
        place
        for place, piece in enumerate(window.pieces)
        if piece.text.strip() and math.isfinite(piece.saved)
    ]
    if not words:
        return Excerpt()
    strongest = max(words, key=lambda place: sign * window.pieces[place].saved)
    piece = window.pieces[strongest]
    before = "".join(other.text for other in window.pieces[:strongest])
    before += piece.text[: len(piece.text) - len(piece.text.lstrip())]
    after = "".join(other.text for other in window.pieces[strongest + 1 :])
    if len(before) > AROUND:
        before = "…" + before[-AROUND:].partition(" ")[2]
    if len(after) > AROUND:
        after = after[:AROUND].rpartition(" ")[0].rstrip(",;:. ") + "…"
    title = f"{'saved' if piece.saved > 0 else 'cost'} {abs(piece.saved):.1f} bits here"
    before, after = (text.replace("\n", " ") for text in (before, after))
    return Excerpt(before, piece.text.strip(), after, title)


def total(heat: Heat) -> str:
    """How often the state helped and hurt, and the sum of it."""
    known = heat.saved[np.isfinite(heat.saved)]
    if not len(known):
        return "Nothing was predicted."
    bits = float(known.sum())
    helped, hurt = (100 * float((sign * known > 0).mean()) for sign in (1, -1))
    each = signed(float(known.mean()), 3).lstrip(f"+{MINUS}")
    return (
        f"Over {count(len(known), 'predicted token')} the state {'saved' if bits >= 0 else 'cost'} "
        f"{abs(bits):,.0f} bits, {each} per token: it helped at {helped:.0f}\u00a0% of them and hurt "
        f"at {hurt:.0f}\u00a0%."
    )


def text_section(heat: Heat) -> dict[str, Any]:
    """The context of `templates/novel.html`."""
    shown, bounds = windows(heat), levels(heat.saved)
    helped, hurt = passages(shown)
    return {
        "windows": shown,
        "bounds": bounds,
        "legend": legend(bounds),
        "bars": overview(shown),
        "helped": helped,
        "hurt": hurt,
        "most_passages": PASSAGES,
        "excerpt": excerpt,
        "summary": total(heat),
    }


def heat_of(seen: Lens, encoder: Encoder, against: Against = "without") -> Heat:
    """Windows are numbered from 1, through all documents."""
    known = encoder.token_texts()
    texts = [known[number] for number in seen.ids.tolist()]
    # No window predicts a document's first token: it goes with the window that reads it.
    place = np.stack([seen.document, seen.window])
    begins = np.any(np.diff(place, axis=1) != 0, axis=0)
    numbers = 1 + np.concatenate([[0], np.cumsum(begins)])
    saved = (seen.without if against == "without" else seen.other) - seen.own
    return Heat(texts=texts, saved=saved, bits=seen.own, window=numbers)


def summary(seen: Lens) -> dict[str, Any]:
    """The lens in a few numbers, in bits per predicted token."""
    predicted = ~np.isnan(seen.own)
    return {
        "documents": int(seen.document.max()) + 1,
        "tokens": len(seen.ids),
        "predicted": int(predicted.sum()),
        "own": float(seen.own[predicted].mean()),
        "without": float(seen.without[predicted].mean()),
        "other": None if seen.other_is is None else float(seen.other[predicted].mean()),
        "other_is": seen.other_is,
        "state_bytes": seen.state_bytes,
    }


def write_lens_page(
    path: Path,
    record: dict[str, Any],
    seen: Lens,
    encoder: Encoder,
    against: Against = "without",
) -> None:
    """record: text, model, window, provenance."""
    if against == "other" and seen.other_is is None:
        raise ValueError(
            "Only one window of the text has earlier text, so there is no other state to compare with: "
            "give a longer text, or compare with no state (--against without)."
        )
    means = summary(seen)
    above = signed(means["without"] - means["own"], 3)
    cards = [
        ("bits per token with the state", f"{means['own']:.3f}", "as it was carried"),
        ("bits per token without a state", f"{means['without']:.3f}", f"{above} bits"),
    ]
    if means["other_is"] is not None:
        above = f"{signed(means['other'] - means['own'], 3)} bits: {means['other_is']}"
        cards.append(("bits per token with another state", f"{means['other']:.3f}", above))
    shown = {
        **record,
        "saved_against": AGAINST[against].format(other=seen.other_is),
        "otherwise": "without" if against == "without" else "with another",
    }
    title = f"{record['text']}: holdover lens"
    heat = heat_of(seen, encoder, against)
    context = {"record": shown, "lens": means, "cards": cards, **text_section(heat)}
    write_page(path, "lens.html", title=title, **context)
