"""How a batch of texts is cut into windows: pure arithmetic on lengths, then gathers.

* Every position is kept exactly once, whatever the overlap: its logits are returned from, and its
  target is scored in, that one window.
* Causal models keep a position in the first window that reads it (most context to the left);
  bidirectional ones in the window where the nearer edge is farthest.
* Rows may have different lengths and several documents; windows never cross a document's end.
  Rows that need fewer windows than others read nothing in the last ones.
* Padding, wherever it stood, is moved after the tokens: positions always count from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .state import NO_TOKEN

IGNORED = -100


@dataclass(frozen=True)
class Span:
    """One window of one document: it reads start..stop and keeps keep_start..keep_stop."""

    start: int
    stop: int
    keep_start: int
    keep_stop: int


def cut(
    length: int, window: int, overlap: int = 0, seen: int = 0, centred: bool = False
) -> list[Span]:
    """The windows of a document of `length` tokens, the first `seen` of which were kept before."""
    stride = window - overlap
    spans: list[Span] = []
    start, keep_start = 0, seen
    while True:
        stop = min(start + window, length)
        last = stop == length
        keep_stop = stop
        if centred and not last:
            # First position nearer to this window's end than to the next one's beginning.
            keep_stop = (stop - 1 + start + stride) // 2 + 1
        keep_stop = max(keep_stop, keep_start)
        spans.append(Span(start, stop, keep_start, keep_stop))
        if last:
            return spans
        start, keep_start = start + stride, keep_stop


@dataclass(frozen=True)
class WindowLayout:
    """Where one window of every row lies among the columns of the batch."""

    columns: slice | Tensor  # the same for every row, or [B, T] column numbers
    keep: slice | Tensor  # local positions, or [B, T] bool
    mask: Tensor | None = None  # [B, T] bool: tokens, not padding
    begins: Tensor | None = None  # [B] bool: a document begins here
    reads: Tensor | None = None  # [B] bool: the row has tokens here

    def take(self, values: Tensor, padding: int | None = None) -> Tensor:
        """This window's part of values [B, N], padding where the row has no token."""
        if isinstance(self.columns, slice):
            return values[:, self.columns]
        taken = values.gather(1, self.columns)
        if padding is not None and self.mask is not None:
            taken = torch.where(self.mask, taken, torch.full_like(taken, padding))
        return taken

    def kept(self, values: Tensor, otherwise: int) -> Tensor:
        """values [B, T] where this window keeps the position, `otherwise` elsewhere."""
        if isinstance(self.keep, Tensor):
            return torch.where(self.keep, values, torch.full_like(values, otherwise))
        if self.keep.start == 0 and self.keep.stop == values.shape[1]:
            return values
        result = torch.full_like(values, otherwise)
        result[:, self.keep] = values[:, self.keep]
        return result


@dataclass(frozen=True)
class Window:
    """The input of one step."""

    input_ids: Tensor  # [B, T]
    mask: Tensor | None = None  # [B, T] bool, tokens first; None = all tokens
    targets: Tensor | None = None  # [B, T] label of each position's own output, or IGNORED
    begins: Tensor | None = None  # [B] bool
    reads: Tensor | None = None  # [B] bool
    token_type_ids: Tensor | None = None  # [B, T]
    lower: Tensor | None = None  # [B, T, k] input of the insert layer, where it was computed before
    lower_mix: Tensor | None = None  # what the layers below it add to the summary


def lay_out(
    columns: int,
    window: int,
    overlap: int = 0,
    *,
    centred: bool = False,
    tail: int = 0,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> list[WindowLayout]:
    """Places of all windows of a batch [B, columns] whose first `tail` columns were read before."""
    if mask is None and starts is None:
        return [
            WindowLayout(
                slice(span.start, span.stop),
                slice(span.keep_start - span.start, span.keep_stop - span.start),
            )
            for span in cut(columns, window, overlap, tail, centred)
        ]
    assert mask is not None
    rows = []
    for documents in _documents(mask, starts, tail):
        spans = []
        for numbers, seen, begins in documents:
            # A row's old tail alone is nothing to read.
            if len(numbers) > seen:
                pieces = cut(len(numbers), window, overlap, seen, centred)
                spans += [(numbers, span, begins and span is pieces[0]) for span in pieces]
        rows.append(spans)
    count = max(len(spans) for spans in rows)
    return [_ragged_place([_nth(spans, n) for spans in rows], device) for n in range(count)]


def last_tokens(ids: Tensor, count: int, tail: int, mask: Tensor | None, starts: Tensor | None):
    """[B, count] last tokens of each row's current document, NO_TOKEN where it has fewer."""
    if mask is None and starts is None:
        kept = ids[:, -count:]
        missing = count - kept.shape[1]
        return torch.nn.functional.pad(kept, (missing, 0), value=NO_TOKEN)
    assert mask is not None
    result = torch.full((ids.shape[0], count), NO_TOKEN, dtype=ids.dtype, device=ids.device)
    for row, documents in enumerate(_documents(mask, starts, tail)):
        numbers = torch.tensor(documents[-1][0][-count:], dtype=torch.long, device=ids.device)
        result[row, count - len(numbers) :] = ids[row, numbers]
    return result


def _documents(
    mask: Tensor, starts: Tensor | None, tail: int
) -> list[list[tuple[list[int], int, bool]]]:
    """For each row its documents: (column numbers, how many were read before, begins here)."""
    starting = starts.tolist() if starts is not None else None
    result = []
    for row, flags in enumerate(mask.tolist()):
        before = [column for column in range(tail) if flags[column]]
        documents: list[tuple[list[int], int, bool]] = [(before, len(before), False)]
        begins = False
        for column in range(tail, len(flags)):
            # A start that stands on padding is that of the next token.
            begins = begins or (starting is not None and starting[row][column])
            if not flags[column]:
                continue
            if begins:
                documents.append(([], 0, True))
                begins = False
            documents[-1][0].append(column)
        result.append(documents)
    return result


def _nth(spans: Sequence[tuple[list[int], Span, bool]], n: int):
    return spans[n] if n < len(spans) else None


def _ragged_place(
    entries: Sequence[tuple[list[int], Span, bool] | None], device: torch.device | str
) -> WindowLayout:
    width = max(entry[1].stop - entry[1].start for entry in entries if entry is not None)
    columns = torch.zeros(len(entries), width, dtype=torch.long)
    mask = torch.zeros(len(entries), width, dtype=torch.bool)
    keep = torch.zeros(len(entries), width, dtype=torch.bool)
    begins = torch.zeros(len(entries), dtype=torch.bool)
    for row, entry in enumerate(entries):
        if entry is None:
            # A row of nothing but padding has no softmax: show it one token, use nothing of it.
            mask[row, 0] = True
            continue
        numbers, span, begins_here = entry
        length = span.stop - span.start
        columns[row, :length] = torch.tensor(numbers[span.start : span.stop])
        mask[row, :length] = True
        keep[row, span.keep_start - span.start : span.keep_stop - span.start] = True
        begins[row] = begins_here
    reads = torch.tensor([entry is not None for entry in entries])
    return WindowLayout(
        columns.to(device),
        keep.to(device),
        mask=None if bool(mask.all()) else mask.to(device),
        begins=begins.to(device) if bool(begins.any()) else None,
        reads=None if bool(reads.all()) else reads.to(device),
    )


def join(
    parts: Sequence[Tensor], places: Sequence[WindowLayout], columns: int, tail: int = 0
) -> Tensor:
    """Kept positions of every window's [B, T, ...] back in the columns of the batch (zeros else)."""
    if all(isinstance(place.keep, slice) for place in places):
        return torch.cat(
            [part[:, place.keep] for part, place in zip(parts, places, strict=True)], dim=1
        )
    everything = torch.cat(list(parts), dim=1)
    batch, device = everything.shape[0], everything.device
    source = torch.zeros(batch, columns, dtype=torch.long, device=device)
    filled = torch.zeros(batch, columns, dtype=torch.bool, device=device)
    offset = 0
    for part, place in zip(parts, places, strict=True):
        assert isinstance(place.keep, Tensor) and isinstance(place.columns, Tensor)
        row, position = place.keep.nonzero(as_tuple=True)
        column = place.columns[row, position]
        source[row, column] = position + offset
        filled[row, column] = True
        offset += part.shape[1]
    rows = torch.arange(batch, device=device)[:, None]
    joined = everything[rows, source]
    filled = filled.reshape(*filled.shape, *[1] * (joined.ndim - 2))
    return torch.where(filled, joined, torch.zeros_like(joined))[:, tail:]


def shift_left(labels: Tensor, starts: Tensor | None) -> Tensor:
    """The label of each position's output: the next token, never across a document's end."""
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    if starts is not None:
        ends = torch.nn.functional.pad(starts[:, 1:], (0, 1), value=False)
        shifted = torch.where(ends, torch.full_like(shifted, IGNORED), shifted)
    return shifted


def _flatten(window: Window):
    return [getattr(window, field.name) for field in fields(Window)], None


pytree.register_pytree_node(
    Window, _flatten, lambda leaves, _: Window(*leaves), serialized_type_name="holdover.Window"
)
