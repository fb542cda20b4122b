"""A window that is still being written: tokens go in piece by piece, each of them once.

Inside the window the keys and values of earlier pieces wait in a stock cache; between windows there
is only the state. Closing the window gives the state that reading it in one piece would have given.

A token alone should cost what it costs the stock model: what can be done for many tokens at once (mixing
the layers) or once for the window (projecting the carried rows) is not done for each.
"""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from ..carries.base import CarryInputs, StepTrace
from ..recurrent.checks import check_ids, check_state
from ..state import NO_TOKEN, State
from ..windows import Window, last_tokens
from .row_kv_cache import WindowLayer, rows_can_wait, rows_noted

# Positions whose layers' outputs wait to be mixed: enough to make mixing rare, few enough to hold.
MIXED_TOGETHER = 32


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
        self.cache = Cache(layer_class_to_replicate=WindowLayer)
        self.mixtures: list[Tensor] = []
        self.unmixed: dict[int, list[Tensor]] = {}  # by layer, the outputs of pieces since the last
        self.waiting = 0  # positions in them
        self.layer_inputs: list[list[Tensor]] = []  # of each piece
        self.read: list[Tensor] = []
        if state is not None:
            check_state(state, batch, device, model.dtype, model.owner())
        carried = None if state is None else dict(state.tensors)
        present = None if state is None else state.present
        with torch.no_grad():
            reading = model.recurrence.read(carried, present, batch)
            self.reading: CarryInputs = model.hooks.prepared(reading, batch)
        self.trace = StepTrace(
            batch=batch, length=None, tokens=0, carried=carried, present=present, device=device
        )
        self._set_inserted()
        self.rows_wait = (
            self.reading.rows is not None
            and self.reading.visible is None
            and rows_can_wait(model.hooks, self.room)
        )
        if state is not None and state.tail is not None:
            self._read_tail(state.tail)

    @torch.no_grad()
    def feed(self, input_ids: Tensor, *, last_only: bool = False, checked: bool = False) -> Tensor:
        """Read a piece [B, n]; returns its logits [B, n, V], or those behind its end alone [B, 1, V].

        checked: ids that were looked at before, or chosen among the model's own. Looking at them again
        would wait for the device.
        """
        model = self.model
        if not checked:
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
        self.trace.finished = False
        stock = self._call(model.backbone, input_ids, inputs)
        assert self.trace.finished
        self.waiting += embedded.shape[1]
        if self.waiting >= MIXED_TOGETHER:
            self._mix()
        if self.trace.layer_inputs is not None:
            self.layer_inputs.append(self.trace.layer_inputs)
        self.read.append(input_ids)
        self.length += input_ids.shape[1]
        if prefix is None or last_only:
            return stock.logits
        return stock.logits[:, prefix.shape[1] :]

    @torch.no_grad()
    def take_rows(self, index: Tensor) -> None:
        """Go on with these rows, in this order, as often as the index [n] names them."""
        self.cache.reorder_cache(index)  # pyright: ignore[reportArgumentType]
        # In one piece from now on: every taking then costs one copy, however many pieces were read.
        self.read = [torch.cat(self.read, 1)[index]] if self.read else []
        self.mixtures = [torch.cat(self.mixtures, 1)[index]] if self.mixtures else []
        self.unmixed = {
            layer: [torch.cat(pieces, 1)[index]] for layer, pieces in self.unmixed.items()
        }
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
            state_keys=None
            if taken.state_keys is None
            else {n: (key[index], value[index]) for n, (key, value) in taken.state_keys.items()},
        )
        self._set_inserted()

    @torch.no_grad()
    def close(self) -> State:
        """The state after this window."""
        model, trace = self.model, self.trace
        if not self.read:
            raise ValueError("The window is empty: feed it at least one token before closing it.")
        ids = torch.cat(self.read, 1)
        self._mix()
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

    def _set_inserted(self) -> None:
        # Memory tokens are embedded here: without a suffix, the seams leave the input as it is.
        self.inserted = replace(self.reading, suffix=None)
        self.without_rows = replace(self.inserted, rows=None)

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

    def _mix(self) -> None:
        """Show the carry the outputs that wait, layer by layer."""
        mixture = None
        for layer, pieces in self.unmixed.items():
            mixture = self.model.recurrence.observe(mixture, layer, torch.cat(pieces, 1), None)
        if mixture is not None:
            self.mixtures.append(mixture)
        self.unmixed, self.waiting = {}, 0

    def _keep_output(self, partial: Any, layer: int, hidden: Tensor, length: Any) -> Any:
        self.unmixed.setdefault(layer, []).append(hidden)
        return partial

    def _call(self, module: Any, input_ids: Tensor, inputs: dict[str, Any]) -> Any:
        """Run the stock model on one piece behind what the cache holds."""
        hooks, carry = self.model.hooks, self.model.recurrence
        hooks.past = self.cache.get_seq_length()
        pieces = next(iter(inputs.values())).shape[1]
        visible, prefix = self.reading.visible, self.reading.prefix
        if prefix is not None and visible is not None:
            seen = torch.ones(
                len(visible), hooks.past + pieces, dtype=torch.long, device=visible.device
            )
            seen[:, : prefix.shape[1]] = visible[:, None].long()
            inputs["attention_mask"] = seen
        first = self.rows_wait and not hooks.past
        with rows_noted(hooks) if first else nullcontext():
            hooks.open(Window(input_ids), self._inserted_for(pieces), self.trace)
            # While this call lasts: the outputs of single tokens are mixed together, later.
            carry.__dict__["observe"] = self._keep_output
            try:
                stock = module(**inputs, past_key_values=self.cache, use_cache=True)
                self.last = hooks.last_layer
            finally:
                del carry.__dict__["observe"]
                hooks.close()
                hooks.past = 0
        return stock

    def _inserted_for(self, positions: int) -> CarryInputs:
        """What the seams insert: no rows where their keys and values stand in the cache."""
        hooks = self.model.hooks
        if not (self.rows_wait and hooks.past):
            return self.inserted
        # Asked anew each time: the implementation of a live model can be changed.
        shown = positions == 1 and hooks.fused_causal
        for index in hooks.insert_layers:
            layer = self.cache.layers[index]
            assert isinstance(layer, WindowLayer)
            if shown:
                layer.show_rows()
            else:
                layer.hide_rows()
        return self.without_rows if shown else self.inserted


def _rows(tensor: Tensor | None, index: Tensor) -> Tensor | None:
    return None if tensor is None else tensor[index]
