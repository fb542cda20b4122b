"""Transformer-XL: its memory is the carried one, and carried rows are a memory of one layer."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..carries.base import Block, CarryInputs, StepTrace
from ..carries.memory import MemoryCarry
from ..models.block_recurrent import BlockRecurrentLayer
from ..windows import Window
from .attention import AttentionHook, CacheWithoutRows, by_name
from .hooks import Hooks


class TransformerXLAttentionHook(AttentionHook):
    """Rows stand in front of the window, as the positions before it would."""

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        rows = self.rows()
        if rows is None:
            return None
        named = by_name(self.names, args, kwargs)
        segment = named["hidden_states"]
        count = rows.shape[1]
        keys = count + self.hooks.past + segment.shape[1]
        visible, unseen = self.hooks.reading.visible, None
        if visible is not None:
            place = torch.arange(keys, device=visible.device)
            unseen = ~visible[:, None] & (place < count)
        named["memory"] = rows.to(segment.dtype)
        named["places"] = self.hooks.base.places(segment, keys, unseen=unseen)
        if named.get("past_key_values") is not None:
            named["past_key_values"] = CacheWithoutRows(named["past_key_values"], count)
        return named

    def strip(self, output: Any) -> Any:
        return output


class TransformerXLHooks(Hooks):
    def prepared(self, reading: CarryInputs, batch: int) -> CarryInputs:
        keys = {}
        for index, layer in enumerate(self.layers):
            if isinstance(layer, BlockRecurrentLayer):
                carried = None if reading.states is None else reading.states[index]
                keys[index] = layer.state_keys(carried, reading.visible, batch)
        return replace(reading, states=None, state_keys=keys) if keys else reading

    def open(self, window: Window, reading: CarryInputs, trace: StepTrace) -> None:
        super().open(window, reading, trace)
        trace.next_state = self._next_state

    def _next_state(self, index: int, block: Block) -> Tensor:
        layer = self.layers[index]
        assert isinstance(layer, BlockRecurrentLayer)
        return layer.next_state(block)

    def before_base(self, named: dict[str, Any]) -> dict[str, Any]:
        named = super().before_base(named)
        reading = self.reading
        assert reading is not None
        named["states"] = reading.state_keys
        if isinstance(self.carry, MemoryCarry):
            named["memory_length"] = self.carry.length
            named["filled"] = reading.filled
            # Behind the first piece of a window that is being written, its keys are in the cache.
            named["memory"] = None if self.past else reading.memory
        return named
