"""A window that is still being written: tokens go in piece by piece, each of them once.

Inside the window the keys and values of earlier pieces are in a stock cache; between windows there
is only the state. Closing the window gives the state that reading it in one piece would have given.

A single token should cost no more than in the stock model. So work that can be done for many tokens
at once (mixing the layers) or once per window (projecting the carried rows) is not done for each
token.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..backbones.cache_inputs import cache_arguments, cache_with, carried_places, window_keys_values
from ..backbones.window_call import WindowCall
from ..carries.base import CarryInputs, StepTrace
from ..config import RecurrenceConfig
from ..recurrent.checks import check_ids, check_state
from ..state import NO_TOKEN, State
from ..windows import Window, last_tokens
from .row_kv_cache import WindowLayer, rows_can_wait

# Layer outputs of this many positions are mixed at once: rarely, but without much memory.
MIXED_TOGETHER = 32


class OpenWindow:
    """Made by `RecurrentModel.open_window`; for models that read from left to right."""

    def __init__(
        self,
        model: Any,
        state: State | None,
        batch: int,
        device: torch.device,
        settings: RecurrenceConfig | None = None,
    ) -> None:
        if not model.enabled:
            raise ValueError(
                "A window has a state, but the recurrence is disabled: leave disable_recurrence()."
            )
        if not model.spec.causal or model.task != "causal-lm":
            raise ValueError(
                f"{type(model.backbone).__name__} cannot write a window token by token: only models "
                "that read from left to right and predict the next token can."
            )
        self.model = model
        self.settings = (
            settings or model.settings
        )  # for the whole window, even if the model's settings change
        self.before = state
        self.room = self.settings.window
        self.length = 0  # tokens in the window, those of the overlap included
        self.unmixed: dict[int, list[Tensor]] = {}  # by layer, the outputs since the last mix
        self.waiting = 0  # positions in `unmixed`
        self.partials: list[Any] = []  # what the carry made of the outputs before `unmixed`
        self.layer_inputs: list[list[Tensor]] = []  # by piece, the inputs of every layer
        self.read: list[Tensor] = []
        if state is not None:
            check_state(state, batch, device, model.dtype, model.owner(self.settings))
        self.trace = StepTrace(
            batch=batch,
            tokens=0,
            window=self.settings.window,
            overlap=self.settings.overlap,
            settings=self.settings.kind,
            carried=None if state is None else dict(state.tensors),
            present=None if state is None else state.present,
            device=device,
            whole=False,
        )
        with torch.no_grad():
            inputs = model.recurrence.read(self.trace)
            self.inputs: CarryInputs = model.hooks.prepared(inputs, batch)
        self.cache = cache_with(self.inputs, WindowLayer)
        self.carried = carried_places(self.inputs)
        self._set_inserted()
        self.rows_wait = (
            self.inputs.rows is not None
            and self.inputs.visible is None
            and rows_can_wait(model.hooks, self.room)
        )
        if state is not None and state.tail is not None:
            self._read_tail(state.tail)

    @torch.no_grad()
    def feed(self, input_ids: Tensor, *, last_only: bool = False, checked: bool = False) -> Tensor:
        """Read a piece [B, n]; returns its logits [B, n, V], or only its last ones [B, 1, V].

        checked: the ids were checked before, or chosen from the model's vocabulary. Checking them
        again would wait for the device.
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
        prefix = self.inputs.prefix if first else None
        # Embedded here: if given ids, transformers would warn that some may be padding.
        embedded = model.get_input_embeddings()(input_ids)
        if prefix is not None:
            embedded = torch.cat([prefix.to(embedded.dtype), embedded], 1)
        inputs: dict[str, Any] = {"inputs_embeds": embedded}
        if last_only:
            inputs["logits_to_keep"] = 1
        stock = self._call(model.backbone, input_ids, inputs)
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
        """Continue with the rows in `index` [n], in its order; a row named twice is copied."""
        self.cache.reorder_cache(index)  # pyright: ignore[reportArgumentType]
        # Joined into one piece: every selection then costs one copy, however many were read.
        self.read = [torch.cat(self.read, 1)[index]] if self.read else []
        self.partials = [torch.cat(self.partials, 1)[index]] if self.partials else []
        self.unmixed = {
            layer: [torch.cat(pieces, 1)[index]] for layer, pieces in self.unmixed.items()
        }
        self.layer_inputs = [[inputs[index] for inputs in piece] for piece in self._one_piece()]
        self.before = None if self.before is None else self.before.rows(index)
        carried, present = self.trace.carried, self.trace.present
        self.trace = replace(
            self.trace,
            batch=len(index),
            carried=None if carried is None else {name: t[index] for name, t in carried.items()},
            present=None if present is None else present[index],
        )
        self.inputs = self.inputs.rows_at(index)
        self._set_inserted()

    @torch.no_grad()
    def close(self) -> State:
        """The state after this window."""
        model, trace = self.model, self.trace
        if not self.read:
            raise ValueError("The window is empty: feed it at least one token before closing it.")
        ids = torch.cat(self.read, 1)
        self._mix()
        trace.tokens = ids.shape[1]
        trace.partial = torch.cat(self.partials, 1) if self.partials else None
        trace.layer_inputs = next(iter(self._one_piece()), None)
        if model.recurrence.uses_cache:
            trace.keys_values = window_keys_values(self.cache, self.carried)
        if self.inputs.suffix is not None:
            inputs = {"inputs_embeds": self.inputs.suffix.to(model.dtype)}
            last = self._call(model.backbone.base_model, ids, inputs).last_hidden_state
            trace.suffix = last if last.shape[-1] == model.recurrence.dims.hidden else self.last
        tail = None
        if self.settings.overlap:
            tail = last_tokens(ids, self.settings.overlap, 0, None, None)
        return State(model.recurrence.write(trace), None, tail, model.owner(self.settings))

    def _set_inserted(self) -> None:
        # Memory tokens are embedded here: without a suffix, the hooks leave the input as it is.
        self.inserted = replace(self.inputs, suffix=None)
        self.without_rows = replace(self.inserted, rows=None)

    def _one_piece(self) -> list[list[Tensor]]:
        """The layers' inputs, joined into one piece; empty if the carry does not need them."""
        if not self.layer_inputs:
            return []
        return [[torch.cat(pieces, 1) for pieces in zip(*self.layer_inputs, strict=True)]]

    def _read_tail(self, tail: Tensor) -> None:
        known = (tail != NO_TOKEN).all(0)
        if not torch.equal(known, (tail != NO_TOKEN).any(0)):
            raise ValueError(
                "The rows of this state have overlaps of different lengths, as their texts were of "
                "different lengths: open a window for each row, with state.rows(i)."
            )
        if bool(known.any()):
            self.feed(tail[:, known], last_only=True)

    def _mix(self) -> None:
        """Give the carry the outputs in `unmixed`, layer by layer."""
        self.trace.partial = None
        for layer, pieces in self.unmixed.items():
            self.model.recurrence.observe(self.trace, layer, torch.cat(pieces, 1))
        if self.trace.partial is not None:
            self.partials.append(self.trace.partial)
        self.unmixed, self.waiting = {}, 0

    def _keep_output(self, layer: int, hidden: Tensor) -> None:
        self.unmixed.setdefault(layer, []).append(hidden)

    def _call(self, module: Any, input_ids: Tensor, inputs: dict[str, Any]) -> Any:
        """Run the stock model on one piece after the cache's content."""
        hooks = self.model.hooks
        past = self.cache.get_seq_length() - self.carried
        pieces = next(iter(inputs.values())).shape[1]
        visible, prefix = self.inputs.visible, self.inputs.prefix
        if self.model.recurrence.uses_cache:
            inputs |= cache_arguments(self.inputs, input_ids, past)
        elif prefix is not None and visible is not None:
            seen = torch.ones(len(visible), past + pieces, dtype=torch.long, device=visible.device)
            seen[:, : prefix.shape[1]] = visible[:, None].long()
            inputs["attention_mask"] = seen
        call = WindowCall(
            Window(input_ids),
            self._inserted_for(pieces, past),
            self.trace,
            # The outputs of single tokens are mixed together, later.
            observe=self._keep_output,
            past=past,
            keeps_row_keys=self.rows_wait and not past,
        )
        token = hooks.open(call)
        try:
            stock = module(**inputs, past_key_values=self.cache, use_cache=True)
        finally:
            hooks.close(token)
        assert call.finished
        self.last = call.last_layer
        return stock

    def _inserted_for(self, positions: int, past: int) -> CarryInputs:
        """What the hooks insert; no rows if their keys and values are already in the cache."""
        hooks = self.model.hooks
        if not (self.rows_wait and past):
            return self.inserted
        # Checked each time: the attention implementation of a model can be changed.
        shown = positions == 1 and hooks.fused_causal
        for index in hooks.insert_layers:
            layer = self.cache.layers[index]
            assert isinstance(layer, WindowLayer)
            if shown:
                layer.show_rows()
            else:
                layer.hide_rows()
        return self.without_rows if shown else self.inserted
