"""Transformer-XL: its memory is the carried one, and carried rows are a memory of one layer."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..carries.base import Block, CarryInputs
from ..models.block_recurrent import BlockRecurrentLayer
from .attention import AttentionHook, CacheWithoutRows, by_name
from .hooks import Hooks
from .window_call import WindowCall


class TransformerXLAttentionHook(AttentionHook):
    """Rows stand in front of the window, as the positions before it would."""

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        rows = self.rows()
        if rows is None:
            return None
        named = by_name(self.names, args, kwargs)
        segment = named["hidden_states"]
        count = rows.shape[1]
        call = self.hooks.call
        keys = count + call.past + segment.shape[1]
        visible, unseen = call.inputs.visible, None
        if visible is not None:
            place = torch.arange(keys, device=visible.device)
            unseen = ~visible[:, None] & (place < count)
        named["memory"] = rows.to(segment.dtype)
        named["places"] = self.hooks.base.places(segment, keys, unseen=unseen)
        if named.get("past_key_values") is not None:
            cache = named["past_key_values"]
            named["past_key_values"] = CacheWithoutRows(cache, count, call.keeps_row_keys)
        return named

    def strip(self, output: Any) -> Any:
        return output


class TransformerXLHooks(Hooks):
    def prepared(self, inputs: CarryInputs, batch: int) -> CarryInputs:
        keys = {}
        for index, layer in enumerate(self.layers):
            if isinstance(layer, BlockRecurrentLayer):
                carried = None if inputs.states is None else inputs.states[index]
                keys[index] = layer.state_keys(carried, inputs.visible, batch)
        return replace(inputs, states=None, state_keys=keys) if keys else inputs

    def open(self, call: WindowCall) -> Any:
        call.trace.next_state = self._next_state
        return super().open(call)

    def _next_state(self, index: int, block: Block) -> Tensor:
        layer = self.layers[index]
        assert isinstance(layer, BlockRecurrentLayer)
        return layer.next_state(block)

    def before_base(self, call: WindowCall, named: dict[str, Any]) -> dict[str, Any]:
        named = super().before_base(call, named)
        inputs = call.inputs
        named["states"] = inputs.state_keys
        if inputs.memory_length is not None:
            named["memory_length"] = inputs.memory_length
            named["filled"] = inputs.filled
            # After the first piece of a window that is being written, its keys are in the cache.
            named["memory"] = None if call.past else inputs.memory
        return named
