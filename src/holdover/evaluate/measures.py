"""What is reported of a scored text: perplexities with intervals, loss by position, classification."""

import math
from typing import Any

import numpy as np
import torch

from ..data.tokens import Tokens
from .classes import NextToken
from .intervals import Resampled, units_of
from .perplexity import summarise
from .score import Scores
from .words import Words

# Vocabularies up to this size are measured over all their classes.
SMALL_VOCABULARY = 512
# More units than this are not listed in a record.
MOST_UNITS = 2000
# Measure, what it is divided by, and how nats become it.
DIVIDED = (
    ("perplexity_per_token", "tokens", "exp"),
    ("perplexity_per_word", "words", "exp"),
    ("perplexity_per_word_and_line", "words_and_lines", "exp"),
    ("perplexity_per_byte", "bytes", "exp"),
    ("bits_per_byte", "bytes", "bits"),
    ("bits_per_character", "characters", "bits"),
)


def text_counts(tokens: Tokens) -> dict[str, int]:
    return {name: int(values.sum()) for name, values in tokens.counts.items()}


def perplexities(scores: Scores, tokens: Tokens, draws: int, seed: int) -> dict[str, Any]:
    where = scores.scored
    nll = scores.nll[where]
    units, kind = units_of(scores.document[where], scores.window[where])
    resampled = Resampled(units, draws, seed)
    sums, counts = resampled.per_unit(nll), resampled.per_unit(np.ones_like(nll))
    # Words and bytes of tokens that are only read are not predicted either.
    whole = tokens.scored is None
    divisors = {"tokens": len(nll), **(text_counts(tokens) if whole else {})}
    found = summarise(float(nll.sum()), divisors)
    intervals = {}
    for name, unit, form in DIVIDED:
        divisor = found["counts"][unit]
        if divisor:
            # Tokens a word (byte, ...) are taken as they are: only losses are drawn anew.
            scale = len(nll) / divisor
            transform = (
                (lambda nats, scale=scale: np.exp(nats * scale))
                if form == "exp"
                else (lambda nats, scale=scale: nats * scale / np.log(2))
            )
            _, low, high = resampled.interval(sums, counts, transform)
            intervals[name] = [_finite(low), _finite(high)]
        found[name] = _finite(found[name])
    found |= {"intervals": intervals, "interval_over": kind, "units": resampled.count}
    if resampled.count <= MOST_UNITS:
        # For paired comparisons of models that were scored on the same targets.
        found["per_unit"] = {"nats": sums.round(3).tolist(), "tokens": counts.astype(int).tolist()}
    return found


def _finite(value: float | None) -> float | None:
    """Texts of one endless word have infinite perplexities, and JSON has no word for those."""
    return value if value is not None and math.isfinite(value) else None


def mean_by_position(scores: Scores, window: int) -> list[float | None]:
    sums, counts = scores.by_position(window)
    return [
        round(float(total / count), 5) if count else None
        for total, count in zip(sums, counts, strict=True)
    ]


class ClassMeasures:
    """Next-token classification and whole words, gathered while the text is scored."""

    def __init__(self, tokens: Tokens, most: int) -> None:
        self.tokens = tokens
        self.right = np.zeros(len(tokens), bool)
        self.small = tokens.encoder.vocabulary <= SMALL_VOCABULARY
        self.most = most  # classes of a large vocabulary
        self.next_token: NextToken | None = None

    def __call__(self, logits: torch.Tensor, targets: torch.Tensor, places: np.ndarray) -> None:
        if self.next_token is None:
            self.next_token = NextToken(logits.shape[-1], self._classes(logits.shape[-1]))
        self.right[places] = self.next_token.update(logits, targets).cpu().numpy()

    def _classes(self, vocabulary: int) -> list[int] | None:
        """All of a small vocabulary, else the most frequent tokens of the text itself."""
        if self.small and vocabulary <= SMALL_VOCABULARY:
            return None
        counts = np.bincount(self.tokens.ids, minlength=vocabulary)
        return np.argsort(-counts, kind="stable")[: self.most].tolist()

    def result(self, scores: Scores) -> dict[str, Any]:
        assert self.next_token is not None
        encoder = self.tokens.encoder
        words = Words(encoder.starts_word(), encoder.ends_word(), encoder.blank())
        judged = words.of(
            np.asarray(self.tokens.ids), self.right, scores.scored, self.tokens.bounds
        )
        return {**self.next_token.result(), **judged}
