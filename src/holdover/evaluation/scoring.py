"""-log p of every target of a corpus, each scored exactly once.

* The rows of a batch are read in parallel; each row reads its documents one after another. The
  state is carried through a whole document, or reset after every `reset_every` windows. The windows
  of a plain model do not depend on each other.
* The windows are those of training (`Walk`, `cut`): at any overlap a target is scored by the first
  window that reads the token before it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..generation.cursor import Cursor
from ..recurrent.step import OutputRequest
from ..runs.processes import Share
from ..state import State
from ..text.prefetch import prefetch
from ..text.tokens import Tokens
from ..text.window_loader import (
    Batch,
    Segment,
    Walk,
    side_by_side,
    whole_documents,
    windows_of,
    with_resets,
)
from ..windows import IGNORED

# For a model without a state, a text of any length is cut into about this many parts.
PARTS = 1024
# The losses of this many batches stay on the device before they are copied to the host.
FETCH_EVERY = 64

# Called with logits [n, V] and targets [n] of scored positions, and their indices in the stream.
Measure = Callable[[Tensor, Tensor, np.ndarray], None]


@dataclass(frozen=True)
class Scores:
    """For every token of the stream: its -log p (NaN where it was not predicted), the number of the
    window that scored it and its position there."""

    nll: np.ndarray  # [N] float64
    window: np.ndarray  # [N]
    position: np.ndarray  # [N]
    document: np.ndarray  # [N]
    windows: int  # that were read

    @classmethod
    def joined(cls, parts: "Sequence[Scores]") -> "Scores":
        """The scores of several processes, each of which scored its share, as one."""
        first, *others = parts
        nll, window, position = first.nll.copy(), first.window.copy(), first.position.copy()
        for other in others:
            there = other.scored
            nll[there] = other.nll[there]
            window[there], position[there] = other.window[there], other.position[there]
        return cls(nll, window, position, first.document, sum(part.windows for part in parts))

    @property
    def scored(self) -> np.ndarray:
        return ~np.isnan(self.nll)

    def total(self) -> float:
        return float(np.nansum(self.nll))

    def mean(self) -> float:
        return float(np.nanmean(self.nll))

    def by_position(self, window: int, overlap: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """[T] summed -log p at each position of a window, and the number of targets in each sum.

        If windows overlap, the first window of each document is left out: only it scores the
        positions that other windows read again, so these would be measured at beginnings of
        documents alone.
        """
        where = self.scored & (self.window > 0) if overlap else self.scored
        sums = np.bincount(self.position[where], self.nll[where], minlength=window)
        return sums, np.bincount(self.position[where], minlength=window)


def segments_to_score(tokens: Tokens, settings: Any, reset_every: int | None) -> list[Segment]:
    """Whole documents, or the parts between two resets of the state."""
    stretches = whole_documents(tokens)
    if settings.carry == "none":
        # Nothing is carried, so any row can read any window.
        windows = [windows_of(part, settings.window, settings.overlap) for part in stretches]
        reset_every = max(1, sum(map(len, windows)) // PARTS)
    if reset_every is None:
        return stretches
    (parts,) = with_resets([stretches], reset_every, settings.window, settings.overlap)
    return parts


@torch.no_grad()
def score(
    model: Any,
    tokens: Tokens,
    *,
    rows: int,
    device: torch.device,
    reset_every: int | None = None,
    measure: Measure | None = None,
    keep_state: Callable[[Batch, State | None], None] | None = None,
    advance: Callable[[int], Any] | None = None,
    share: Share = Share(),
) -> Scores:
    """Read a corpus with the settings of `model` and score it.

    keep_state: called with every batch of windows and the state they read. advance: called with the
    number of windows read. share: the part of the rows that this process reads; what other
    processes read stays NaN.
    """
    settings = model.settings
    stretches = segments_to_score(tokens, settings, reset_every)
    if not stretches:
        raise ValueError(
            "There is nothing to score: every document is a single token; give a longer text."
        )
    if tokens.scored is not None and not tokens.scored.any():
        raise ValueError(
            "There is nothing to score: no token of the text is marked to be predicted; mark at "
            "least one."
        )
    rows_of = share.dealt(side_by_side(stretches, rows, settings.window, settings.overlap))
    compiled = model.compiled
    walk = Walk(tokens, rows_of, settings.window, settings.overlap, full_width=compiled)
    wanted = OutputRequest(model.task, nll=True, logits=measure is not None)
    found = _Found(tokens)
    cursor = Cursor(model)
    with closing(prefetch(_one_by_one(walk, compiled), device)) as batches:
        for batch in batches:
            keep = None if keep_state is None else partial(keep_state, batch)
            output = cursor.read_window(batch.windows()[0], wanted, before=keep)
            found.add(batch, output["nll"])
            if measure is not None:
                keep = batch.targets[0] != IGNORED
                measure(output["logits"][keep], batch.targets[0][keep], found.places(batch))
            if advance is not None:
                advance(sum(place is not None for place in batch.places[0]))
    return found.scores()


def first_windows(tokens: Tokens, rows: int, count: int, window: int) -> Tokens:
    """The beginnings of the first `rows` documents: about `count` windows in all."""
    documents = min(rows, tokens.documents)
    part = tokens.part(0, int(tokens.bounds[documents]))
    return part.truncated(window * max(count // documents, 2) + 1)


def _one_by_one(walk: Walk, all_rows: bool) -> Iterator[Batch]:
    """Batches of one window; ended rows are left out, unless a compiled step needs them."""
    lengths = walk.lengths()
    for number in range(len(walk)):
        active = sum(length > number for length in lengths)
        yield walk.batch(number, 1, rows=None if all_rows else range(active))


class _Found:
    """Losses on their way from the device to their places in the stream."""

    def __init__(self, tokens: Tokens) -> None:
        size = len(tokens)
        self.tokens = tokens
        self.nll = np.full(size, np.nan)
        self.window = np.zeros(size, np.int32)
        self.position = np.zeros(size, np.int32)
        self.windows = 0
        self._waiting: list[tuple[Batch, Tensor]] = []

    def add(self, batch: Batch, nll: Tensor) -> None:
        self._waiting.append((batch, nll))
        if len(self._waiting) == FETCH_EVERY:
            self._fetch()

    def places(self, batch: Batch) -> np.ndarray:
        """The indices in the stream of the scored targets of a batch of one window, row by row."""
        parts = []
        for place in batch.places[0]:
            if place is None:
                continue
            first, last = place.start + place.keep + 1, place.start + place.length + 1
            part = np.arange(first, last)
            parts.append(part[self.tokens.targets(first, last) != IGNORED])
        return np.concatenate(parts)

    def _fetch(self) -> None:
        for batch, nll in self._waiting:
            values = nll.double().cpu().numpy()
            for row, place in enumerate(batch.places[0]):
                if place is None:
                    continue
                self.windows += 1
                into = slice(place.start + place.keep + 1, place.start + place.length + 1)
                assert np.isnan(self.nll[into]).all(), "a target was scored twice"
                wanted = self.tokens.targets(into.start, into.stop) != IGNORED
                found = values[row, place.keep : place.length]
                # NaN means "not predicted": a NaN loss would silently be left out of every mean.
                if not np.isfinite(found[wanted]).all():
                    raise FloatingPointError(
                        f"The loss of window {place.window} of document {place.document} is not "
                        "finite: the weights are damaged, or the precision is too low (leave bf16 "
                        "out)."
                    )
                self.nll[into] = np.where(wanted, found, np.nan)
                self.window[into] = place.window
                self.position[into] = np.arange(place.keep, place.length)
        self._waiting = []

    def scores(self) -> Scores:
        self._fetch()
        document = np.repeat(np.arange(self.tokens.documents), self.tokens.lengths())
        return Scores(self.nll, self.window, self.position, document, self.windows)
