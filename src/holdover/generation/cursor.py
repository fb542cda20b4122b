"""The cursor over windows, which everything that reads or writes without gradients uses.

* `Cursor` reads texts that grow: a batch of prompts, then token by token. Each row has its own
  position in its window. Rows at the same position share an open window and one forward pass per
  token. Rows whose windows become full at the same token share the next one.
* Whole windows are read in one forward pass each and leave nothing but the state (`read_window`).
* The host keeps every row's position, so inside a window nothing is read back from the device.
* A full window is closed only when a token for the next one comes: the last token costs no forward
  pass.
* `GenerationCache` wraps a cursor to replace transformers' key-value cache.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..recurrent.checks import check_ids, check_state
from ..recurrent.overrides import overridden
from ..state import NO_TOKEN, State
from ..windows import Window
from .open_window import OpenWindow


@dataclass(eq=False)
class Group:
    """Rows of the batch that are at the same position in their window."""

    rows: list[int]  # batch indices, ascending: a single group is the batch in order
    window: OpenWindow

    @cached_property
    def index(self) -> Tensor:
        """[n] the rows, on the device of their window."""
        return torch.tensor(self.rows, device=self.window.trace.device)


class Cursor:
    """The position of a batch of texts: open windows, and the state before them.

    A text can be repeated (for beams, or several sequences): a prompt is read once for all its copies.
    """

    def __init__(
        self,
        model: Any,
        texts: int = 1,
        state: State | None = None,
        *,
        reset_every: int | None = None,
    ) -> None:
        if state is not None:
            check_state(state, texts, model.device, model.dtype, model.owner())
        self.model = model
        self.device = model.device
        self.texts = texts
        self.settings = model.settings  # for every window, even if the model's settings change
        self.state = state  # before the open windows
        self.groups: list[Group] = []
        # Windows after which the state is forgotten (the overlap is not); None carries it on.
        self.reset_every = reset_every
        self.windows = 0  # begun so far by the row that has begun the most
        self.checks_tokens = True  # False: tokens after the prompt are the model's own

    @torch.no_grad()
    def read_window(
        self,
        window: Window,
        request: Any,
        before: Callable[[State | None], None] | None = None,
    ) -> dict[str, Any]:
        """Read a window that is already cut. Rows that it lacks have ended.

        before: receives the state that the window reads.
        """
        rows, state = window.input_ids.shape[0], self.state
        if state is not None and state.batch_size > rows:
            # Rows are sorted by length: those that have ended are the last.
            state = state.rows(range(rows))
        if state is not None and window.begins is not None:
            state = state.reset(window.begins)
        if before is not None:
            before(state)
        output, self.state = self.model.step(window, state, request, settings=self.settings)
        return output

    @property
    def window(self) -> OpenWindow | None:
        """The open window, if all rows are at the same position."""
        return self.groups[0].window if self.groups else None

    @property
    def room(self) -> int:
        """Tokens that fit into the only row's open window, or into its next one."""
        if self.groups:
            return self.groups[0].window.room - self.groups[0].window.length
        tail = _tails(self.state, [torch.empty(0)])[0]  # rows at one place have tails of one length
        return self.settings.window - len(tail)

    def reorder(self, index: Tensor) -> None:
        """Continue with the rows in `index`, in its order; a row named twice is copied."""
        if len(self.groups) == 1:
            window = self.groups[0].window
            window.take_rows(index.to(self.device))
            self.groups = [Group(list(range(len(index))), window)]
            return
        wanted, kept = index.tolist(), []
        for group in self.groups:
            places = {row: place for place, row in enumerate(group.rows)}
            rows = [row for row, old in enumerate(wanted) if old in places]
            if rows:
                taken = [places[wanted[row]] for row in rows]
                group.window.take_rows(torch.tensor(taken, device=self.device))
                kept.append(Group(rows, group.window))
        self.groups = kept

    @torch.no_grad()
    def read(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Read the prompt [B, n], then tokens [B, 1]; returns each row's last logits [B, 1, V]."""
        ids = input_ids.to(self.device)
        if len(self.groups) > 1:
            return self._read_apart(ids, not self.checks_tokens)
        if self.groups:
            logits = self.advance(ids, checked=not self.checks_tokens)
            assert logits is not None
            return logits
        copies = len(ids) // self.texts
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask.to(ids.device)
        logits = self._read_prompt(ids[::copies], mask[::copies].bool())
        if copies > 1:
            texts = torch.arange(self.texts, device=ids.device).repeat_interleave(copies)
            self.reorder(texts)
            logits = logits[texts]
        return logits

    @torch.no_grad()
    def close(self) -> State | None:
        """The state after everything that was read; more text opens new windows."""
        if self.groups:
            states = State.concat([group.window.close() for group in self.groups])
            rows = torch.cat([group.index for group in self.groups])
            self.groups = []
            self.state = states.rows(rows.argsort())
        return self.state

    @torch.no_grad()
    def advance(self, ids: Tensor, *, checked: bool = False) -> Tensor | None:
        """Read tokens [B, n] of rows that are all at the same position; returns the last logits
        [B, 1, V]. checked: the ids are known to be in the model's vocabulary."""
        logits = None
        while ids.shape[1]:
            if self.groups and self.groups[0].window.length == self.groups[0].window.room:
                ids = self._after_window(self.close(), ids)
            room = self.room
            piece, ids = ids[:, :room], ids[:, room:]
            if not self.groups and ids.shape[1]:
                # More follows, so the logits of this window are not needed.
                state = self._read_whole(piece, None, self.state)
                self.windows += 1
                ids = self._after_window(state, ids)
                continue
            if not self.groups:
                window = self._open(self.state, len(piece))
                self.groups = [Group(list(range(len(piece))), window)]
            # A copy: each view would keep a whole text in memory.
            logits = self.groups[0].window.feed(piece.clone(), last_only=True, checked=checked)
        return logits

    def _after_window(self, state: State | None, ids: Tensor) -> Tensor:
        """Continue after a whole window. If the state is reset now, the overlap is read again."""
        self.state = state
        if state is None or self.reset_every is None or self.windows % self.reset_every:
            return ids
        self.state = None
        return ids if state.tail is None else torch.cat([state.tail, ids], 1)

    def _read_prompt(self, ids: Tensor, mask: Tensor) -> Tensor:
        check_ids(ids, mask, self.model.vocabulary)
        if not bool(mask[:, -1].all()):
            raise ValueError(
                "The prompt ends in padding, and new tokens would follow it: pad on the left "
                "(padding_side='left'), and give an attention_mask if a text itself contains the "
                "padding id."
            )
        texts = [row[kept] for row, kept in zip(ids, mask, strict=True)]
        texts, state = self._read_whole_windows(texts, self.state)
        held = [torch.cat(both) for both in zip(_tails(state, texts), texts, strict=True)]
        at_place: dict[int, list[int]] = {}
        for row, tokens in enumerate(held):
            at_place.setdefault(len(tokens), []).append(row)
        parts = []
        for numbers in at_place.values():
            rows = torch.tensor(numbers, device=ids.device)
            window = self._open(_past_of(state, rows), len(rows))
            together = torch.stack([held[row] for row in numbers])
            parts.append(window.feed(together, last_only=True, checked=True))
            self.groups.append(Group(numbers, window))
        return self._in_order(parts)

    def _read_whole_windows(
        self, texts: list[Tensor], state: State | None
    ) -> tuple[list[Tensor], State | None]:
        """Read all but the last windows of the texts; returns the rest, and the state before it."""
        while True:
            rooms = [self.settings.window - len(tail) for tail in _tails(state, texts)]
            counts = [
                room if len(text) > room else 0 for text, room in zip(texts, rooms, strict=True)
            ]
            if not any(counts):
                return texts, state
            pieces = [text[:count] for text, count in zip(texts, counts, strict=True)]
            mask = pad_sequence([torch.ones_like(piece) for piece in pieces], batch_first=True)
            # More follows, so the logits of these windows are not needed.
            state = self._read_whole(pad_sequence(pieces, batch_first=True), mask, state)
            texts = [text[count:] for text, count in zip(texts, counts, strict=True)]

    def _read_apart(self, ids: Tensor, checked: bool) -> Tensor:
        """Read one token [B, 1] per row; the rows are at different positions."""
        full = [group for group in self.groups if group.window.length == group.window.room]
        if full:
            rows = [row for group in full for row in group.rows]
            state = State.concat([group.window.close() for group in full])
            if len(full) > 1:
                order = sorted(range(len(rows)), key=rows.__getitem__)
                state = state.rows(torch.tensor(order, device=self.device))
            window = self._open(state, len(rows))
            others = [group for group in self.groups if group not in full]
            self.groups = [*others, Group(sorted(rows), window)]
        parts = [
            group.window.feed(
                ids[group.index] if len(self.groups) > 1 else ids.clone(),
                last_only=True,
                checked=checked,
            )
            for group in self.groups
        ]
        return self._in_order(parts)

    def _open(self, state: State | None, rows: int) -> OpenWindow:
        self.windows += 1
        return OpenWindow(self.model, state, rows, self.device, self.settings)

    def _read_whole(self, ids: Tensor, mask: Tensor | None, state: State | None) -> State:
        with overridden(self.model, settings=self.settings):
            return self.model(ids, mask, state=state, return_logits=False).state

    def _in_order(self, parts: list[Tensor]) -> Tensor:
        """The groups' logits, in the order of the batch's rows."""
        if len(parts) == 1:
            return parts[0]
        together = torch.cat(parts)
        logits = torch.empty_like(together)
        logits[torch.cat([group.index for group in self.groups])] = together
        return logits


class GenerationCache(Cache):
    """A cursor that transformers' generate carries from token to token as its cache."""

    # A window cannot take back what it has read.
    is_croppable = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self, cursor: Cursor, *, checks_tokens: bool = True) -> None:
        super().__init__(layers=[])
        self.cursor = cursor
        cursor.checks_tokens = checks_tokens
        self.columns = 0  # of the batch that were read, padding included
        self.closed = False
        self.other_rows: str | None = None  # why the rows are not the texts that were returned

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.cursor.reorder(beam_idx)

    def read(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Read the prompt [B, n], then tokens [B, 1]; returns each row's last logits [B, 1, V]."""
        if self.closed:
            raise ValueError(
                "This cache was closed and can read nothing more: give the state that close() "
                "returned to the next call (state=...)."
            )
        self.columns += input_ids.shape[1]
        return self.cursor.read(input_ids, attention_mask)

    def answer(self, input_ids: Tensor, attention_mask: Tensor | None) -> CausalLMOutputWithPast:
        """Read on, and return what a model of transformers returns."""
        logits = self.read(input_ids, attention_mask)
        return CausalLMOutputWithPast(logits=logits, past_key_values=self)  # pyright: ignore[reportArgumentType]

    def close(self) -> State:
        """The state after everything that was read; nothing can be read on afterwards.

        The last token that generate returns was written, not read: the next call begins with it.
        Refused if rows are not the texts that were returned: for beams, and for texts that ended
        before others and were filled up with padding, which was read too.
        """
        if self.closed:
            raise ValueError(
                "This cache was closed before, and its windows are gone: keep the state that the first "
                "close() returned."
            )
        if not self.cursor.groups:
            raise ValueError(
                "Nothing was read yet, so there is no state: close the cache after generating."
            )
        if self.other_rows is not None:
            raise ValueError(
                f"There is no state of the returned texts: {self.other_rows}; read the texts again with "
                "model(sequences, attention_mask=...).state, and mask the padding."
            )
        self.closed = True
        state = self.cursor.close()
        assert state is not None
        return state


def _tails(state: State | None, texts: list[Tensor]) -> list[Tensor]:
    """The tokens that each row reads again at the beginning of its next window."""
    if state is None or state.tail is None:
        return [text[:0] for text in texts]
    return [row[row != NO_TOKEN] for row in state.tail]


def _past_of(state: State | None, rows: Tensor) -> State | None:
    """The state of some rows without the tail, which their windows receive with the text."""
    if state is None:
        return None
    past = replace(state.rows(rows), tail=None)
    if past.present is not None and not bool(past.present.any()):
        return None
    # Uniform rows need no mask.
    return replace(past, present=None) if bool(past.presence().all()) else past
