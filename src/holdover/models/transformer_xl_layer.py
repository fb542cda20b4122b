"""A layer of Transformer-XL: attention by distance, over the segment and the memory before it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.relative_softmax import PositionScores
from .attend import build_attend
from .transformer_xl_config import TransformerXLConfig


@dataclass(frozen=True)
class Places:
    """Positions of a window's queries relative to their keys; all layers share these tensors."""

    columns: Tensor  # [W, k] R at the distances of `column_distances`, dropout applied
    hidden: Tensor  # [B or 1, 1, T, K] bool: keys that a query does not read
    span: int | None  # keys at this distance or more are not read
    unseen: Tensor | None  # [B, K] bool: keys that no query reads
    content_bias: Tensor  # [H, d] u
    position_bias: Tensor  # [H, d] v


class RelativeAttention(nn.Module):
    """Attention from a window to itself and to the memory before it."""

    def __init__(
        self,
        config: TransformerXLConfig,
        index: int,
        attend: nn.Module | None = None,
        reads: int = 1,
    ) -> None:
        """attend: the attention module, by default the configuration's choice. reads: the number of
        attention results with H heads each that the output projection joins."""
        super().__init__()
        self.index = index
        self.heads = config.n_head
        inner = config.n_head * config.d_head
        self.scale = config.d_head**-0.5
        self.query = nn.Linear(config.d_model, inner, bias=False)
        self.key_value = nn.Linear(config.d_model, 2 * inner, bias=False)
        self.position = nn.Linear(config.d_model, inner, bias=False)  # W_R
        self.output = nn.Linear(reads * inner, config.d_model, bias=False)
        self.attend = build_attend(config) if attend is None else attend

    def forward(
        self,
        hidden_states: Tensor,
        places: Places,
        memory: Tensor | None = None,
        past_key_values: Any = None,
    ) -> Tensor:
        """[B, T, k]. memory [B, M, k] holds older inputs of this layer, before the keys of the cache."""
        return self.output(self.read(hidden_states, places, memory, past_key_values))

    def read(
        self, hidden_states: Tensor, places: Places, memory: Tensor | None, past_key_values: Any
    ) -> Tensor:
        """[B, T, H * d]: the output of the heads, before the output projection."""
        query = self._heads(self.query(hidden_states))
        key, value = self.keys_values(hidden_states, memory)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.index)
        # Cast u and v to the precision of the products: under autocast they are in float32.
        by_content = query + places.content_bias.to(query.dtype)
        by_position = (query + places.position_bias.to(query.dtype)) * self.scale
        positions = self._heads(self.position(places.columns))
        scores = PositionScores(by_position, positions, places.hidden, places.span, places.unseen)
        read = self.attend(by_content.transpose(1, 2), key, value, scores, places.unseen)
        return read.transpose(1, 2).flatten(2)

    def keys_values(self, inputs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """[B, H, M + T, d] each, from inputs [B, T, k] and older inputs [B, M, k] before them."""
        both = inputs if memory is None else torch.cat([memory, inputs], 1)
        key, value = self.key_value(both).chunk(2, -1)
        return self._heads(key).transpose(1, 2), self._heads(value).transpose(1, 2)

    def _heads(self, values: Tensor) -> Tensor:
        """[..., H * d] -> [..., H, d]"""
        return values.unflatten(-1, (self.heads, -1))


class TransformerXLLayer(nn.Module):
    """Attention and a feed-forward map, each added to its input and then normed (post-norm)."""

    def __init__(
        self, config: TransformerXLConfig, index: int, attention: RelativeAttention | None = None
    ) -> None:
        super().__init__()
        width, eps = config.d_model, config.layer_norm_epsilon
        self.attention = RelativeAttention(config, index) if attention is None else attention
        self.attention_norm = nn.LayerNorm(width, eps)
        self.inner = nn.Linear(width, config.d_inner)
        self.outer = nn.Linear(config.d_inner, width)
        self.norm = nn.LayerNorm(width, eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        hidden_states: Tensor,
        places: Places,
        memory: Tensor | None = None,
        past_key_values: Any = None,
    ) -> Tensor:
        read = self.attention(hidden_states, places, memory, past_key_values)
        return self.after_attention(hidden_states, read)

    def after_attention(self, hidden_states: Tensor, read: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden_states + self.dropout(read))
        mapped = self.outer(self.dropout(self.inner(hidden).relu()))
        return self.norm(hidden + self.dropout(mapped))
