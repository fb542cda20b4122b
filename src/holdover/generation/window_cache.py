"""The cache that transformers' generate carries from token to token: open windows and their states.

* Each row stands at a place of its own in its window. Rows at the same place share an open window, and
  one forward a token; when windows are full at the same token, their rows go on together.
* Whole windows of a prompt are read in one forward each and leave nothing but the state.
* Which row stands where is known to the host: inside a window nothing is read back from the device.
* A full window is closed when there is a token for the next one, as by `Writer`: the last token of all
  costs no forward.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast

from ..recurrent.checks import check_ids, check_state
from ..state import NO_TOKEN, State
from .open_window import OpenWindow


@dataclass(eq=False)
class Group:
    """Rows of the batch that stand at the same place of their window."""

    rows: list[int]  # their numbers in the batch, ascending: a group alone is the batch as it is
    window: OpenWindow

    @cached_property
    def index(self) -> Tensor:
        """[n] the rows, where they are used."""
        return torch.tensor(self.rows, device=self.window.trace.device)


class WindowCache(Cache):
    """What was read of a batch of texts, behind a state of as many rows.

    generate repeats a text for every beam or sequence that it returns: a prompt is read once for all.
    """

    # A window cannot take back what it has read.
    is_croppable = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self, model: Any, texts: int, state: State | None = None) -> None:
        super().__init__(layers=[])
        if state is not None:
            check_state(state, texts, model.device, model.dtype, model.owner())
        self.model = model
        self.device = model.device
        self.texts = texts
        self.state = state  # behind which the texts begin
        self.groups: list[Group] = []
        self.columns = 0  # of the batch that were read, padding included
        self.closed = False
        self.chosen = False  # tokens behind the prompt are the model's own, and need no check
        self.other_rows: str | None = None  # why the rows are not the texts that were returned

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Go on with these rows, in this order, as often as they are named."""
        if len(self.groups) == 1:
            window = self.groups[0].window
            window.take_rows(beam_idx.to(self.device))
            self.groups = [Group(list(range(len(beam_idx))), window)]
            return
        wanted, kept = beam_idx.tolist(), []
        for group in self.groups:
            places = {row: place for place, row in enumerate(group.rows)}
            rows = [row for row, old in enumerate(wanted) if old in places]
            if rows:
                index = [places[wanted[row]] for row in rows]
                group.window.take_rows(torch.tensor(index, device=self.device))
                kept.append(Group(rows, group.window))
        self.groups = kept

    def answer(self, input_ids: Tensor, attention_mask: Tensor | None) -> CausalLMOutputWithPast:
        """Read on, and say it as a model of transformers does."""
        logits = self.read(input_ids, attention_mask)
        return CausalLMOutputWithPast(logits=logits, past_key_values=self)  # pyright: ignore[reportArgumentType]

    @torch.no_grad()
    def read(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The prompt [B, n], then tokens [B, 1]; returns the logits behind each row's last [B, 1, V]."""
        if self.closed:
            raise ValueError(
                "This cache was closed, and nothing can be read on in it: give the state that close() "
                "returned to a next call (state=...)."
            )
        ids = input_ids.to(self.device)
        self.columns += ids.shape[1]
        if self.groups:
            self._turn_pages()
            if len(self.groups) == 1:
                # A copy: a view would keep the whole text alive, another one for every token.
                window, ids = self.groups[0].window, ids.clone()
                return window.feed(ids, last_only=True, checked=self.chosen)
            parts = [
                group.window.feed(ids[group.index], last_only=True, checked=self.chosen)
                for group in self.groups
            ]
            return self._in_order(parts)
        copies = len(ids) // self.texts
        mask = torch.ones_like(ids) if attention_mask is None else attention_mask.to(ids.device)
        logits = self._read_prompt(ids[::copies], mask[::copies].bool())
        if copies > 1:
            texts = torch.arange(self.texts, device=ids.device).repeat_interleave(copies)
            self.reorder_cache(texts)
            logits = logits[texts]
        return logits

    @torch.no_grad()
    def close(self) -> State:
        """The state behind everything that was read; nothing can be read on afterwards.

        The last token that generate returns was written, not read: it is where a next call begins.
        Refused where rows are not the texts that were returned: of beams, and where a text has ended
        before others and was filled up with padding, which was read too.
        """
        if self.closed:
            raise ValueError(
                "This cache was closed before, and its windows are gone: keep the state that the first "
                "close() returned."
            )
        if not self.groups:
            raise ValueError(
                "Nothing was read yet, so there is no state: close the cache afterwards."
            )
        if self.other_rows is not None:
            raise ValueError(
                f"There is no state of what was returned: {self.other_rows}; read the texts again with "
                "model(sequences, attention_mask=...).state, the padding masked."
            )
        self.closed = True
        states = State.concat([group.window.close() for group in self.groups])
        rows = torch.cat([group.index for group in self.groups])
        self.groups = []
        return states.rows(rows.argsort())

    def _read_prompt(self, ids: Tensor, mask: Tensor) -> Tensor:
        check_ids(ids, mask, self.model.vocabulary)
        if not bool(mask[:, -1].all()):
            raise ValueError(
                "The prompt ends in padding, and what is written would stand behind it: pad on the "
                "left (padding_side='left'), and give an attention_mask where a text itself holds the "
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
            window = OpenWindow(self.model, _past_of(state, rows), len(rows), ids.device)
            together = torch.stack([held[row] for row in numbers])
            parts.append(window.feed(together, last_only=True, checked=True))
            self.groups.append(Group(numbers, window))
        return self._in_order(parts)

    def _read_whole_windows(
        self, texts: list[Tensor], state: State | None
    ) -> tuple[list[Tensor], State | None]:
        """What is left of the texts for their last windows, and the state in front of these."""
        while True:
            rooms = [self.model.settings.window - len(tail) for tail in _tails(state, texts)]
            counts = [
                room if len(text) > room else 0 for text, room in zip(texts, rooms, strict=True)
            ]
            if not any(counts):
                return texts, state
            pieces = [text[:count] for text, count in zip(texts, counts, strict=True)]
            mask = pad_sequence([torch.ones_like(piece) for piece in pieces], batch_first=True)
            # More follows, so nobody asks for the logits behind these windows.
            state = self.model(
                pad_sequence(pieces, batch_first=True), mask, state=state, return_logits=False
            ).state
            texts = [text[count:] for text, count in zip(texts, counts, strict=True)]

    def _turn_pages(self) -> None:
        """Close the windows that are full and open the next."""
        full = [group for group in self.groups if group.window.length == group.window.room]
        if full:
            rows = [row for group in full for row in group.rows]
            state = State.concat([group.window.close() for group in full])
            if len(full) > 1:
                order = sorted(range(len(rows)), key=rows.__getitem__)
                state = state.rows(torch.tensor(order, device=self.device))
            window = OpenWindow(self.model, state, len(rows), self.device)
            others = [group for group in self.groups if group not in full]
            self.groups = [*others, Group(sorted(rows), window)]

    def _in_order(self, parts: list[Tensor]) -> Tensor:
        """The groups' logits as rows of the batch."""
        if len(parts) == 1:
            return parts[0]
        together = torch.cat(parts)
        logits = torch.empty_like(together)
        logits[torch.cat([group.index for group in self.groups])] = together
        return logits


def _tails(state: State | None, texts: list[Tensor]) -> list[Tensor]:
    """What each row reads again at the beginning of its next window."""
    if state is None or state.tail is None:
        return [text[:0] for text in texts]
    return [row[row != NO_TOKEN] for row in state.tail]


def _past_of(state: State | None, rows: Tensor) -> State | None:
    """The state of some rows without its tail, which their windows are given with the text."""
    if state is None:
        return None
    past = replace(state.rows(rows), tail=None)
    if past.present is not None and not bool(past.present.any()):
        return None
    # Uniform rows need no mask.
    return replace(past, present=None) if bool(past.presence().all()) else past
