"""Batches of questions: a row is a question, read through the windows of its context.

* All rows have as many windows as the longest context. A row that has ended shows one token in the
  remaining windows; it is ignored and changes no state.
* One gather (`order`) collects the tokens' scores from all windows. Its positions are known before
  anything is read, so nothing waits for the device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..runs.processes import Share
from ..windows import Window
from .pairs import Pair

# Batches that are sorted by length together, so that few rows wait for others.
POOL = 16


@dataclass(frozen=True)
class QuestionBatch:
    numbers: tuple[int, ...]  # numbers of the questions
    ids: Tensor  # [W, B, T]
    mask: Tensor  # [W, B, T] bool: a token, no padding
    types: Tensor | None  # [W, B, T]
    reads: Tensor  # [W, B] bool: the row has a window here
    order: Tensor  # [B, N] index of a context's token among all W * T positions of its row
    context: Tensor  # [B, N] bool: the row has such a token
    kinds: Tensor  # [B] index in KINDS, -1 without an answer
    spans: Tensor  # [B, O, 2] first and last token of the answer's occurrences
    occurs: Tensor  # [B, O] bool: the row has such an occurrence
    tokens: int  # tokens that all processes read, including the questions
    questions: int  # questions of the batch in all processes
    # [W] whether no row has ended and whether no row has padding, known without asking the device.
    all_read: tuple[bool, ...]
    all_tokens: tuple[bool, ...]
    idle: bool = False  # this process has none of the questions

    @property
    def scored(self) -> int:
        return self.questions

    def windows(self) -> list[Window]:
        return [
            Window(
                input_ids=self.ids[number],
                mask=None if self.all_tokens[number] else self.mask[number],
                token_type_ids=None if self.types is None else self.types[number],
                reads=None if everyone else self.reads[number],
            )
            for number, everyone in enumerate(self.all_read)
        ]

    def to(self, device: torch.device) -> "QuestionBatch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "QuestionBatch":
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Any) -> "QuestionBatch":
        tensors = {
            field.name: change(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)


@dataclass(frozen=True)
class Layout:
    """How contexts are cut and padded."""

    window: int
    overlap: int = 0
    # In an overlap, a token is scored in the window in which more context surrounds it.
    centred: bool = True
    padding: int = 0
    types: bool = False  # the model takes token types: question or context


class Pairs:
    """Tokenised questions, from which batches are made."""

    def __init__(self, pairs: Sequence[Pair], layout: Layout) -> None:
        self.pairs, self.layout = list(pairs), layout
        # [Q] windows of each; refuses questions that do not fit, before anything is read.
        self.counts = np.array(
            [len(p.windows(layout.window, layout.overlap, layout.centred)) for p in self.pairs]
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def tokens(self) -> int:
        """Tokens that one epoch reads."""
        return sum(map(self._tokens_of, range(len(self))))

    def _tokens_of(self, number: int) -> int:
        pair, count = self.pairs[number], int(self.counts[number])
        again = (count - 1) * self.layout.overlap + count * (len(pair.head) + len(pair.tail))
        return len(pair.ids) + again

    def sorted_batches(self, rows: int, share: Share = Share()) -> Iterator[QuestionBatch]:
        """All questions, the longest first: if memory is too small, that shows at once."""
        order = np.argsort(-self.counts, kind="stable")
        for first in range(0, len(order), rows):
            yield self._shared(order[first : first + rows].tolist(), share)

    def shuffled_batches(
        self, rows: int, seed: int, epoch: int, start: int, share: Share = Share()
    ) -> Iterator[QuestionBatch]:
        """An epoch's batches from number `start` on: questions of similar length, in random order."""
        random = np.random.default_rng([seed, epoch])
        order = random.permutation(len(self))
        batches: list[np.ndarray] = []
        for first in range(0, len(order), rows * POOL):
            pool = order[first : first + rows * POOL]
            pool = pool[np.argsort(self.counts[pool], kind="stable")]
            batches += [pool[place : place + rows] for place in range(0, len(pool), rows)]
        for number in random.permutation(len(batches))[start:]:
            yield self._shared(batches[number].tolist(), share)

    def _shared(self, numbers: Sequence[int], share: Share) -> QuestionBatch:
        """One share of a batch's questions, with the counts of the whole batch."""
        own, idle = share.rows_or_idle(len(numbers))
        batch = self.batch(numbers[own.start : own.stop])
        tokens = sum(map(self._tokens_of, numbers))
        return replace(batch, tokens=tokens, questions=len(numbers), idle=idle)

    def count_batches(self, rows: int) -> int:
        # Only the last pool can end with a smaller batch.
        return -(-len(self) // rows)

    def batch(self, numbers: Sequence[int]) -> QuestionBatch:
        pairs, layout = [self.pairs[number] for number in numbers], self.layout
        cuts = [p.windows(layout.window, layout.overlap, layout.centred) for p in pairs]
        count = max(map(len, cuts))
        width = max(
            len(p.head) + len(p.tail) + max(span.stop - span.start for span in spans)
            for p, spans in zip(pairs, cuts, strict=True)
        )
        longest = max(len(p.ids) for p in pairs)
        most = max(1, *(len(p.spans) for p in pairs))
        shape = (count, len(pairs), width)
        ids, types = np.full(shape, layout.padding), np.zeros(shape, dtype=np.int64)
        mask = np.zeros(shape, dtype=bool)
        reads = np.zeros(shape[:2], dtype=bool)
        order = np.zeros((len(pairs), longest), dtype=np.int64)
        context = np.zeros((len(pairs), longest), dtype=bool)
        spans = np.zeros((len(pairs), most, 2), dtype=np.int64)
        occurs = np.zeros((len(pairs), most), dtype=bool)
        for row, (pair, cut) in enumerate(zip(pairs, cuts, strict=True)):
            head = len(pair.head)
            for number, span in enumerate(cut):
                part = pair.ids[span.start : span.stop]
                whole = np.concatenate([pair.head, part, pair.tail])
                ids[number, row, : len(whole)] = whole
                types[number, row, : len(whole)] = np.concatenate(
                    [pair.head_types, np.full(len(part), pair.type), pair.tail_types]
                )
                mask[number, row, : len(whole)] = True
                kept = np.arange(span.keep_start, span.keep_stop)
                order[row, kept] = number * width + head + kept - span.start
            reads[: len(cut), row] = True
            # A row of only padding would have no softmax.
            mask[len(cut) :, row, 0] = True
            ids[len(cut) :, row, 0] = ids[0, row, 0]
            context[row, : len(pair.ids)] = True
            spans[row, : len(pair.spans)] = pair.spans
            occurs[row, : len(pair.spans)] = True
        tokens = torch.from_numpy
        return QuestionBatch(
            numbers=tuple(numbers),
            ids=tokens(ids),
            mask=tokens(mask),
            types=tokens(types) if layout.types else None,
            reads=tokens(reads),
            order=tokens(order),
            context=tokens(context),
            kinds=torch.tensor([pair.kind for pair in pairs]),
            spans=tokens(spans),
            occurs=tokens(occurs),
            tokens=sum(map(self._tokens_of, numbers)),
            questions=len(numbers),
            all_read=tuple(bool(row.all()) for row in reads),
            all_tokens=tuple(bool(window.all()) for window in mask),
        )
