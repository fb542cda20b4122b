"""Walk: batch rows that each read their own documents, window by window.

* A segment of n inputs has n targets, each one token later. A document can be divided between rows
  without losing or repeating a target. Its first token is read and not predicted, because nothing
  comes before it, unless the corpus was tokenised with a bos token.
* A segment is cut into windows as `cut` does it, never across a document's end. Its last window is
  shorter and padded at the end. Rows that are finished read one padding token that is not scored.
* The rows alone decide which window is read at which step, so a step's number is a position in the
  data for any number of processes. Each process cuts its own rows and knows the segments of all.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np
import torch
from torch import Tensor

from ..runs.processes import Share
from ..windows import IGNORED, Window
from .tokens import Tokens


@dataclass(frozen=True)
class Segment:
    """Positions of one document that one row reads without a reset of its state."""

    document: int
    start: int  # where its first input stands in the stream
    length: int  # inputs, and as many targets
    first: int = 0  # number of the first window to read
    last: int | None = None  # one more than the number of the last window; None: to the end


@dataclass(frozen=True)
class RowWindow:
    """A row's window. Its position p predicts stream[start + p + 1] and is scored if
    keep <= p < length."""

    document: int
    window: int  # number within the segment's document, from 0
    start: int
    keep: int
    length: int


@dataclass(frozen=True)
class Batch:
    """Consecutive windows of all rows, stacked so that they are copied to a device at once."""

    ids: Tensor  # [W, B, T]
    targets: Tensor  # [W, B, T]
    mask: Tensor  # [W, B, T] bool
    begins: Tensor  # [W, B] bool
    padded: tuple[bool, ...]  # [W] whether a window has padding
    begun: tuple[bool, ...]  # [W] whether a document begins in it
    scored: int  # targets of all rows, also of those in other processes
    tokens: int  # inputs of all rows, without those read again from the window before
    places: tuple[tuple[RowWindow | None, ...], ...]  # [W][B]
    idle: bool = False  # never, because every process has its own rows

    def windows(self) -> list[Window]:
        return [
            Window(
                input_ids=self.ids[number],
                targets=self.targets[number],
                mask=self.mask[number] if self.padded[number] else None,
                begins=self.begins[number] if self.begun[number] else None,
            )
            for number in range(len(self.padded))
        ]

    def pinned(self) -> "Batch":
        return self._map(Tensor.pin_memory)

    def to(self, device: torch.device) -> "Batch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def _map(self, change) -> "Batch":
        names = ("ids", "targets", "mask", "begins")
        return replace(self, **{name: change(getattr(self, name)) for name in names})


class Walk:
    """Rows of segments that are read at the same pace."""

    def __init__(
        self,
        tokens: Tokens,
        rows: Sequence[Sequence[Segment]],
        window: int,
        overlap: int = 0,
        full_width: bool = False,
    ) -> None:
        self.tokens = tokens
        self.rows = rows
        self.window = window
        self.overlap = overlap
        # Pad to the full window even if no row fills it, because compiled steps need one shape.
        self.full_width = full_width
        self._ends = [
            np.cumsum([len(windows_of(segment, window, overlap)) for segment in row]).tolist()
            for row in rows
        ]

    def lengths(self) -> list[int]:
        """Windows of each row."""
        return [ends[-1] if ends else 0 for ends in self._ends]

    def __len__(self) -> int:
        """Windows of the longest row."""
        return max(self.lengths(), default=0)

    def place(self, row: int, number: int) -> tuple[RowWindow, bool] | None:
        """A row's window, and whether the row's state is reset before it; None after its end."""
        index = bisect_right(self._ends[row], number)
        if index == len(self._ends[row]):
            return None
        segment = self.rows[row][index]
        before = self._ends[row][index - 1] if index else 0
        window = number - before + segment.first
        offset = window * (self.window - self.overlap)
        place = RowWindow(
            document=segment.document,
            window=window,
            start=segment.start + offset,
            keep=self.overlap if window else 0,
            length=min(self.window, segment.length - offset),
        )
        return place, number == before

    def batch(self, first: int, count: int, rows: range | None = None) -> Batch:
        """Windows first .. first + count of some consecutive rows (all of them)."""
        rows = range(len(self.rows)) if rows is None else rows
        shape = (count, len(rows), self.window)
        ids, targets = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        mask, begins = np.zeros(shape, bool), np.zeros(shape[:2], bool)
        places: list[tuple[RowWindow | None, ...]] = []
        scored, new, width = 0, 0, 1
        for number in range(count):
            own: list[RowWindow | None] = []
            for row in range(len(self.rows)):
                entry = self.place(row, first + number)
                place, begins_here = entry or (None, False)
                if place is not None:
                    new += place.length - place.keep
                    # All processes use one width, so that their states have one shape.
                    width = max(width, place.length)
                    predicted = (place.start + place.keep + 1, place.start + place.length + 1)
                    scored += self.tokens.count_targets(*predicted)
                if row not in rows:
                    continue
                own.append(place)
                here = row - rows.start
                if place is None:
                    mask[number, here, 0] = True
                    continue
                begins[number, here] = begins_here
                read = self.tokens.ids[place.start : place.start + place.length]
                ids[number, here, : place.length] = read
                scored_ids = self.tokens.targets(*predicted)
                targets[number, here, place.keep : place.length] = scored_ids
                mask[number, here, : place.length] = True
            places.append(tuple(own))
        width = self.window if self.full_width else width
        part = np.s_[:, :, :width]
        return Batch(
            ids=torch.from_numpy(np.ascontiguousarray(ids[part])),
            targets=torch.from_numpy(np.ascontiguousarray(targets[part])),
            mask=torch.from_numpy(np.ascontiguousarray(mask[part])),
            begins=torch.from_numpy(begins),
            padded=tuple(not bool(window.all()) for window in mask[part]),
            begun=tuple(bool(flags.any()) for flags in begins),
            scored=scored,
            tokens=new,
            places=tuple(places),
        )

    def batches(self, windows: int, start: int = 0, share: Share = Share()) -> Iterator[Batch]:
        """All steps of `windows` windows each, from step number `start`, for the rows of a share."""
        rows = share.rows(len(self.rows))
        for first in range(start * windows, len(self), windows):
            yield self.batch(first, min(windows, len(self) - first), rows)


def count_windows(length: int, window: int, overlap: int = 0) -> int:
    """The number of windows that `cut` makes from a length."""
    stride = window - overlap
    return 1 if length <= window else 1 + -(-(length - window) // stride)


def windows_of(segment: Segment, window: int, overlap: int = 0) -> range:
    """Numbers of the windows that are read in a segment."""
    end = count_windows(segment.length, window, overlap)
    return range(segment.first, end if segment.last is None else min(segment.last, end))


def training_rows(tokens: Tokens, rows: int, seed: int, epoch: int) -> list[list[Segment]]:
    """All targets of a corpus in rows of equal length, in another order in every epoch.

    The documents are put end to end in a random order and cut into one part per row.
    """
    order = np.random.default_rng([seed, epoch]).permutation(tokens.documents)
    lengths = np.maximum(tokens.lengths() - 1, 0)
    total = int(lengths.sum())
    if total < rows:
        raise ValueError(
            f"The training text has {total} tokens to predict, too few for {rows} rows: give a longer "
            "text or fewer --rows."
        )
    result: list[list[Segment]] = [[] for _ in range(rows)]
    row, done = 0, 0
    for document in order.tolist():
        offset, left = 0, int(lengths[document])
        while left:
            taken = min(left, total * (row + 1) // rows - done)
            start = int(tokens.bounds[document]) + offset
            result[row].append(Segment(document, start, taken))
            offset, left, done = offset + taken, left - taken, done + taken
            if done == total * (row + 1) // rows:
                row += 1
    return result


def with_resets(
    rows: Sequence[Sequence[Segment]], every: int, window: int, overlap: int = 0
) -> list[list[Segment]]:
    """The same windows, with the state reset after `every` windows."""
    return [
        [
            replace(segment, first=first, last=first + every)
            for segment in row
            for first in range(0, count_windows(segment.length, window, overlap), every)
        ]
        for row in rows
    ]


def whole_documents(tokens: Tokens) -> list[Segment]:
    """Every document as one segment."""
    lengths = tokens.lengths() - 1
    return [
        Segment(document, int(tokens.bounds[document]), int(length))
        for document, length in enumerate(lengths)
        if length > 0
    ]


def side_by_side(
    segments: Sequence[Segment], rows: int, window: int, overlap: int = 0
) -> list[list[Segment]]:
    """Segments divided among at most `rows` rows of about equal length, the longest row first."""

    def windows(segment: Segment) -> int:
        return len(windows_of(segment, window, overlap))

    loads = [(0, row) for row in range(min(rows, len(segments)))]
    heapify(loads)
    result: list[list[Segment]] = [[] for _ in loads]
    for segment in sorted(segments, key=lambda s: (-windows(s), s.start, s.first)):
        load, row = loads[0]
        result[row].append(segment)
        heapreplace(loads, (load + windows(segment), row))
    return sorted(result, key=lambda row: -sum(map(windows, row)))
