"""Transformer-XL: its memory is the carried one, and carried rows are a memory of one layer."""

from typing import Any

import torch

from ..mechanisms import MemoryCarry
from .attention import AttentionSeam, CacheWithoutRows, by_name
from .seams import Seams


class TransformerXLAttentionSeam(AttentionSeam):
    """Rows stand in front of the window, as the positions before it would."""

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        rows = self.rows()
        if rows is None:
            return None
        named = by_name(self.names, args, kwargs)
        segment = named["hidden_states"]
        count = rows.shape[1]
        keys = count + self.seams.past + segment.shape[1]
        visible, unseen = self.seams.reading.visible, None
        if visible is not None:
            place = torch.arange(keys, device=visible.device)
            unseen = ~visible[:, None] & (place < count)
        named["memory"] = rows.to(segment.dtype)
        named["places"] = self.seams.base.places(segment, keys, unseen=unseen)
        if named.get("past_key_values") is not None:
            named["past_key_values"] = CacheWithoutRows(named["past_key_values"], count)
        return named

    def strip(self, output: Any) -> Any:
        return output


class TransformerXLSeams(Seams):
    def before_base(self, named: dict[str, Any]) -> dict[str, Any]:
        named = super().before_base(named)
        reading = self.reading
        assert reading is not None
        if isinstance(self.carry, MemoryCarry):
            named["memory_length"] = self.carry.length
            named["filled"] = reading.filled
            # Behind the first piece of a window that is being written, its keys are in the cache.
            named["memory"] = None if self.past else reading.memory
        return named
