"""Measures of a scored text: perplexities with intervals, loss by position, classification."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..text.tokens import Tokens
from .classes import NextToken
from .intervals import Resampled, units_of
from .perplexity import summarise
from .scoring import Scores
from .words import Words

# In vocabularies up to this size, every token is a class of its own.
SMALL_VOCABULARY = 512
# More units than this are not listed in a record.
MOST_UNITS = 2000
# Each measure, the count that the nats are divided by, and the transform of nats per count.
DIVIDED: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("perplexity_per_token", "tokens", np.exp),
    ("perplexity_per_word", "words", np.exp),
    ("perplexity_per_word_and_line", "words_and_lines", np.exp),
    ("perplexity_per_byte", "bytes", np.exp),
    ("bits_per_byte", "bytes", lambda nats: nats / np.log(2)),
    ("bits_per_character", "characters", lambda nats: nats / np.log(2)),
)


def text_counts(tokens: Tokens) -> dict[str, int]:
    return {name: int(values.sum()) for name, values in tokens.counts.items()}


def perplexities(
    scores: Scores, tokens: Tokens, window: int, draws: int, seed: int
) -> dict[str, Any]:
    """Every number with its 95 % interval; only the predicted part of the text counts."""
    where = scores.scored
    nll = scores.nll[where]
    document = scores.document[where]
    # Blocks are the windows without overlap, so they are the same at every overlap.
    in_document = np.flatnonzero(where) - tokens.bounds[document] - 1
    units, kind = units_of(document, in_document // window)
    resampled = Resampled(units, draws, seed)
    sums, targets = resampled.per_unit(nll), resampled.per_unit(np.ones_like(nll))
    by_document = {} if tokens.scored is not None else tokens.predicted_counts()
    totals = {name: int(values.sum()) for name, values in by_document.items()}
    result = summarise(float(nll.sum()), {"tokens": len(nll), **totals})
    intervals = {}
    for name, unit, transform in DIVIDED:
        divisor = result["counts"][unit]
        if divisor:
            counts = targets * (divisor / len(nll))
            if kind == "documents" and unit != "tokens":
                counts = _of_documents(by_document, unit)[np.unique(document)]
            _, low, high = resampled.interval(sums, counts, transform)
            intervals[name] = [_finite(low), _finite(high)]
        result[name] = _finite(result[name])
    result |= {"intervals": intervals, "interval_over": kind, "units": resampled.count}
    if kind != "documents":
        result["held_fixed"] = (
            "tokens a word, byte and character are the whole text's in all blocks"
        )
    if resampled.count <= MOST_UNITS:
        # For paired comparisons of models that were scored on the same targets.
        per_unit = {"nats": sums.round(3).tolist(), "tokens": targets.astype(int).tolist()}
        result["per_unit"] = per_unit
    return result


def _of_documents(counts: dict[str, np.ndarray], unit: str) -> np.ndarray:
    return counts["words"] + counts["lines"] if unit == "words_and_lines" else counts[unit]


def _finite(value: float | None) -> float | None:
    """None for infinity, which JSON cannot hold (a text with very few, very long words)."""
    return value if value is not None and math.isfinite(value) else None


def mean_by_position(scores: Scores, window: int, overlap: int) -> list[float | None]:
    sums, counts = scores.by_position(window, overlap)
    return [
        round(float(total / count), 5) if count else None
        for total, count in zip(sums, counts, strict=True)
    ]


def mean_by_distance(
    scores: Scores, tokens: Tokens, window: int, overlap: int, reset_every: int | None
) -> list[dict[str, Any]]:
    """Mean loss by the number of tokens read before a token, in its window and earlier ones.

    Reading begins with the document, or after the last reset. The ranges are the first window, the
    second, the next two, the next four, ...
    """
    where = scores.scored
    document, number = scores.document[where], scores.window[where]
    read = np.flatnonzero(where) - tokens.bounds[:-1][document] - 1
    if reset_every is not None:
        read -= number // reset_every * reset_every * (window - overlap)
    nll, most = scores.nll[where], int(read.max()) + 1
    ranges, first, last = [], 0, window
    while first < most:
        here = (first <= read) & (read < last)
        if here.any():
            loss = round(float(nll[here].mean()), 5)
            ranges.append(
                {"from": first, "to": min(last, most), "loss": loss, "tokens": int(here.sum())}
            )
        first, last = last, 2 * last
    return ranges


class ClassMeasures:
    """Next-token classification and whole words, counted while the text is scored."""

    def __init__(self, tokens: Tokens, most: int) -> None:
        self.tokens = tokens
        self.right = np.zeros(len(tokens), bool)
        self.small = tokens.encoder.vocabulary <= SMALL_VOCABULARY
        self.most = most  # number of classes of a large vocabulary
        self.next_token: NextToken | None = None

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor, places: np.ndarray) -> None:
        if self.next_token is None:
            self.next_token = NextToken(logits.shape[-1], self._classes(logits.shape[-1]))
        self.right[places] = self.next_token.update(logits, targets).cpu().numpy()

    def part(self) -> tuple[NextToken | None, np.ndarray]:
        """The counts of this process, to send to the others."""
        return self.next_token, self.right

    def join(self, parts: Sequence[tuple[NextToken | None, np.ndarray]]) -> None:
        """Add the counts of all processes, this one among them."""
        self.next_token = None
        for counted, right in parts:
            self.right |= right
            if self.next_token is None:
                self.next_token = counted
            elif counted is not None:
                self.next_token.add(counted)

    def _classes(self, vocabulary: int) -> list[int] | None:
        """All tokens of a small vocabulary, else the most frequent tokens of the text itself."""
        if self.small and vocabulary <= SMALL_VOCABULARY:
            return None
        ids = np.asarray(self.tokens.ids)
        targets = ids if self.tokens.scored is None else ids[self.tokens.scored]
        counts = np.bincount(targets, minlength=vocabulary)
        return np.argsort(-counts, kind="stable")[: self.most].tolist()

    def result(self, scores: Scores) -> dict[str, Any]:
        assert self.next_token is not None
        encoder = self.tokens.encoder
        words = Words(encoder.starts_word(), encoder.ends_word(), encoder.blank())
        judged = words.of(
            np.asarray(self.tokens.ids), self.right, scores.scored, self.tokens.bounds
        )
        return {**self.next_token.result(), **judged}
