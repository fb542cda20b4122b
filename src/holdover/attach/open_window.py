"""A window that is still being written: tokens go in piece by piece, each of them once.

Inside the window the keys and values of earlier pieces wait in a stock cache; between windows there
is only the state. Closing the window gives the state that reading it in one piece would have given.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from ..mechanisms import Reading
from ..mechanisms.carry import Trace
from ..state import NO_TOKEN, State
from ..windows import Window, last_tokens
from .checks import check_ids, check_state


class OpenWindow:
    """Made by `RecurrentModel.open_window`; for models that read from left to right."""

    def __init__(self, model: Any, state: State | None, batch: int, device: torch.device) -> None:
        if not model.enabled:
            raise ValueError(
                "A window hands a state on, and the recurrence is disabled: leave disable_recurrence()."
            )
        if not model.row.causal or model.task != "causal-lm":
            raise ValueError(
                f"{type(model.backbone).__name__} cannot write a window token by token: only models "
                "that read from left to right and predict the next token can."
            )
        self.model = model
        self.before = state
        self.room = model.settings.window
        self.length = 0  # tokens in the window, those of the overlap included
        self.cache = DynamicCache()
        self.mixtures: list[Tensor] = []
        self.layer_inputs: list[list[Tensor]] = []  # of each piece
        self.read: list[Tensor] = []
        if state is not None:
            check_state(state, batch, device, model.dtype, model.owner())
        carried = None if state is None else dict(state.tensors)
        present = None if state is None else state.present
        with torch.no_grad():
            self.reading: Reading = model.recurrence.read(carried, present, batch)
        self.trace = Trace(
            batch=batch, length=None, tokens=0, carried=carried, present=present, device=device
        )
        if state is not None and state.tail is not None:
            self._read_tail(state.tail)

    @torch.no_grad()
    def feed(self, input_ids: Tensor, *, last_only: bool = False) -> Tensor:
        """Read a piece [B, n]; returns its logits [B, n, V], or those behind its end alone [B, 1, V]."""
        model = self.model
        check_ids(input_ids, None, model.vocabulary)
        if self.length + input_ids.shape[1] > self.room:
            raise ValueError(
                f"The window holds {self.room} tokens, {self.length} are in it and "
                f"{input_ids.shape[1]} more do not fit: close it and open the next."
            )
        first = not self.read
        prefix = self.reading.prefix if first else None
        # Embedded here: of ids, transformers would warn that some may be padding.
        embedded = model.get_input_embeddings()(input_ids)
        if prefix is not None:
            embedded = torch.cat([prefix.to(embedded.dtype), embedded], 1)
        inputs: dict[str, Any] = {"inputs_embeds": embedded}
        if last_only:
            inputs["logits_to_keep"] = 1
        self.trace.partial, self.trace.finished = None, False
        stock = self._call(model.backbone, input_ids, inputs)
        assert self.trace.finished
        if self.trace.partial is not None:
            self.mixtures.append(self.trace.partial)
        if self.trace.layer_inputs is not None:
            self.layer_inputs.append(self.trace.layer_inputs)
        self.read.append(input_ids)
        self.length += input_ids.shape[1]
        if prefix is None or last_only:
            return stock.logits
        return stock.logits[:, prefix.shape[1] :]

    def take_rows(self, index: Tensor) -> None:
        """Go on with these rows, in this order, as often as the index [n] names them."""
        self.cache.reorder_cache(index)  # pyright: ignore[reportArgumentType]
        # In one piece from now on: every taking then costs one copy, however many pieces were read.
        self.read = [torch.cat(self.read, 1)[index]] if self.read else []
        self.mixtures = [torch.cat(self.mixtures, 1)[index]] if self.mixtures else []
        self.layer_inputs = [[inputs[index] for inputs in piece] for piece in self._one_piece()]
        self.before = None if self.before is None else self.before.rows(index)
        carried, present, taken = self.trace.carried, self.trace.present, self.reading
        self.trace = replace(
            self.trace,
            batch=len(index),
            carried=None if carried is None else {name: t[index] for name, t in carried.items()},
            present=_rows(present, index),
        )
        self.reading = replace(
            taken,
            rows=_rows(taken.rows, index),
            prefix=_rows(taken.prefix, index),
            suffix=_rows(taken.suffix, index),
            memory=None if taken.memory is None else [older[index] for older in taken.memory],
            filled=_rows(taken.filled, index),
            visible=_rows(taken.visible, index),
        )

    @torch.no_grad()
    def close(self) -> State:
        """The state after this window."""
        model, trace = self.model, self.trace
        if not self.read:
            raise ValueError("The window is empty: feed it at least one token before closing it.")
        ids = torch.cat(self.read, 1)
        trace.tokens, trace.length, trace.pieces = ids.shape[1], model._pooled(ids.shape[1]), True
        trace.partial = torch.cat(self.mixtures, 1) if self.mixtures else None
        trace.layer_inputs = next(iter(self._one_piece()), None)
        if self.reading.suffix is not None:
            inputs = {"inputs_embeds": self.reading.suffix.to(model.dtype)}
            last = self._call(model.backbone.base_model, ids, inputs).last_hidden_state
            trace.suffix = last if last.shape[-1] == model.recurrence.shape.hidden else self.last
        tail = None
        if model.settings.overlap:
            tail = last_tokens(ids, model.settings.overlap, 0, None, None)
        return State(model.recurrence.write(trace), None, tail, model.owner())

    def _one_piece(self) -> list[list[Tensor]]:
        """The layers' inputs as of a window read at once; nothing where no one asks for them."""
        if not self.layer_inputs:
            return []
        return [[torch.cat(pieces, 1) for pieces in zip(*self.layer_inputs, strict=True)]]

    def _read_tail(self, tail: Tensor) -> None:
        known = (tail != NO_TOKEN).all(0)
        if not torch.equal(known, (tail != NO_TOKEN).any(0)):
            raise ValueError(
                "The rows of this state have read texts of different lengths and stand at different "
                "places of their overlap: open a window for each row with state.rows(i)."
            )
        if bool(known.any()):
            self.feed(tail[:, known], last_only=True)

    def _call(self, module: Any, input_ids: Tensor, inputs: dict[str, Any]) -> Any:
        """Run the stock model on one piece behind what the cache holds."""
        seams = self.model.seams
        seams.past = self.cache.get_seq_length()
        pieces = next(iter(inputs.values())).shape[1]
        visible, prefix = self.reading.visible, self.reading.prefix
        if prefix is not None and visible is not None:
            seen = torch.ones(
                len(visible), seams.past + pieces, dtype=torch.long, device=visible.device
            )
            seen[:, : prefix.shape[1]] = visible[:, None].long()
            inputs["attention_mask"] = seen
        # Memory tokens are embedded here: without a suffix, the seams leave the input as it is.
        seams.open(Window(input_ids), replace(self.reading, suffix=None), self.trace)
        try:
            stock = module(**inputs, past_key_values=self.cache, use_cache=True)
            self.last = seams.last_layer
        finally:
            seams.close()
            seams.past = 0
        return stock


def _rows(tensor: Tensor | None, index: Tensor) -> Tensor | None:
    return None if tensor is None else tensor[index]
