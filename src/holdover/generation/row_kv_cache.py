"""Carried rows whose keys and values wait in the cache of an open window.

The hooks put the rows in front of a layer's input, where they are projected, masked and dropped again.
For a token alone that is more work than the token, and the same for every one: what the first piece
made of the rows is noted, and stands in front of the layer's cached keys while single tokens are read.
One query that sees all keys needs no mask.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicLayer

from ..backbones.attention import AttentionHook
from ..backbones.hooks import Hooks


class WindowLayer(DynamicLayer):
    """Keys and values of one layer's tokens, and in front of them the carried rows' where shown."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows: tuple[Tensor, Tensor] | None = None  # [B, heads, m, d] keys and values
        self.shown = 0  # how many positions of the cache are rows

    def show_rows(self) -> None:
        if not self.shown:
            assert self.rows is not None and self.keys is not None and self.values is not None
            keys, values = self.rows
            self.keys = torch.cat([keys, self.keys], 2)
            self.values = torch.cat([values, self.values], 2)
            self.shown = keys.shape[2]

    def hide_rows(self) -> None:
        if self.shown:
            assert self.keys is not None and self.values is not None
            self.keys = self.keys[:, :, self.shown :]
            self.values = self.values[:, :, self.shown :]
            self.shown = 0

    def get_seq_length(self) -> int:
        # Positions and masks are counted from the tokens.
        return super().get_seq_length() - self.shown

    def reorder_cache(self, beam_idx: Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().reorder_cache(beam_idx)  # pyright: ignore[reportArgumentType]
        if self.rows is not None:
            keys, values = self.rows
            self.rows = keys[beam_idx], values[beam_idx]


def rows_can_wait(hooks: Hooks, window: int) -> bool:
    """Whether a token alone sees everything in the cache, in all layers that read rows."""
    # Attention that counts from the rows, or hides keys by itself, takes them from the hooks.
    plain = (
        hooks.spec.hooks is None and hooks.spec.attention_hook is AttentionHook and not hooks.rsa
    )
    if not (plain and hooks.fused_causal):
        return False
    stock = getattr(hooks.model.config, "sliding_window", None)
    limits = [getattr(module, "sliding_window", stock) for module in _reading_attention(hooks)]
    return all(limit is None or window < limit for limit in limits)


def _reading_attention(hooks: Hooks) -> list[nn.Module]:
    return [
        hooks.layers[index].get_submodule(hooks.spec.attention) for index in hooks.insert_layers
    ]
