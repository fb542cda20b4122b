"""Transformer-XL (Dai et al. 2019): a decoder with relative positions that reads a memory of its layers.

* A segment's queries read [memory ; segment]: of every layer the older inputs, given as `memory`. The
  model keeps none itself: they are the carried state (carry="memory"), or the keys of a cache.
* Only distances matter, so that the memory may be longer when a trained model is evaluated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from ..mechanisms.relative import column_distances, hidden_keys, position_bias, sinusoids
from ..mechanisms.rem import RecurrenceEncoding
from .attend import build_attend
from .transformer_xl_config import TransformerXLConfig, check_sizes


@dataclass(frozen=True)
class Places:
    """How the queries of a window lie to their keys, and what all layers share of it."""

    columns: Tensor  # [W, k] R at the distances of `column_distances`, dropout applied
    hidden: Tensor  # [B or 1, 1, T, K] bool: what a query does not read
    unseen: Tensor | None  # [B, K] bool: what nobody reads
    content_bias: Tensor  # [H, d] u
    position_bias: Tensor  # [H, d] v


class ScaledEmbedding(nn.Embedding):
    """Embeddings times sqrt(k); tied to the output, whose product takes them as they are."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.embedding_dim**0.5


class RelativeAttention(nn.Module):
    """Queries of a window, keys and values of what is in front of it as well."""

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads = config.n_head
        inner = config.n_head * config.d_head
        self.scale = config.d_head**-0.5
        self.query = nn.Linear(config.d_model, inner, bias=False)
        self.key_value = nn.Linear(config.d_model, 2 * inner, bias=False)
        self.position = nn.Linear(config.d_model, inner, bias=False)  # W_R
        self.output = nn.Linear(inner, config.d_model, bias=False)
        self.attend = build_attend(config)

    def forward(
        self,
        hidden_states: Tensor,
        places: Places,
        memory: Tensor | None = None,
        past_key_values: Any = None,
    ) -> Tensor:
        """[B, T, k]; memory [B, M, k]: older inputs of this layer, read in front of the cache's keys."""
        older = hidden_states if memory is None else torch.cat([memory, hidden_states], 1)
        query = self._heads(self.query(hidden_states))
        key, value = (
            self._heads(part).transpose(1, 2) for part in self.key_value(older).chunk(2, -1)
        )
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.index)
        # In the precision of the products also under autocast, where u and v are in float32.
        by_content = query + places.content_bias.to(query.dtype)
        by_position = (query + places.position_bias.to(query.dtype)) * self.scale
        bias = position_bias(by_position, self._heads(self.position(places.columns)), places.hidden)
        read = self.attend(by_content.transpose(1, 2), key, value, bias, places.unseen)
        return self.output(read.transpose(1, 2).flatten(2))

    def _heads(self, values: Tensor) -> Tensor:
        """[..., H * d] -> [..., H, d]"""
        return values.unflatten(-1, (self.heads, -1))


class TransformerXLLayer(nn.Module):
    """Attention and a feed-forward map, each added to its input and normed behind."""

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__()
        width, eps = config.d_model, config.layer_norm_epsilon
        self.attention = RelativeAttention(config, index)
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
        hidden = self.attention_norm(hidden_states + self.dropout(read))
        mapped = self.outer(self.dropout(self.inner(hidden).relu()))
        return self.norm(hidden + self.dropout(mapped))


class TransformerXLPreTrainedModel(PreTrainedModel):
    config_class = TransformerXLConfig
    base_model_prefix = "transformer"
    _no_split_modules: Any = ("TransformerXLLayer",)
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        spread = self.config.initializer_range
        if isinstance(module, nn.Linear | nn.Embedding):
            init.normal_(module.weight, std=spread)
        elif isinstance(module, nn.LayerNorm):
            init.normal_(module.weight, mean=1.0, std=spread)
        elif isinstance(module, TransformerXLModel):
            init.normal_(module.content_bias, std=spread)
            init.normal_(module.position_bias, std=spread)
        elif isinstance(module, RecurrenceEncoding):
            module.reset_parameters()
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            init.zeros_(module.bias)


class TransformerXLModel(TransformerXLPreTrainedModel):
    """Without a head."""

    _input_embed_layer = "embedding"

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        check_sizes(config)
        self.embedding = ScaledEmbedding(config.vocab_size, config.d_model)
        self.content_bias = nn.Parameter(torch.empty(config.n_head, config.d_head))
        self.position_bias = nn.Parameter(torch.empty(config.n_head, config.d_head))
        self.layers = nn.ModuleList(
            TransformerXLLayer(config, index) for index in range(config.n_layer)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        memory: Sequence[Tensor] | None = None,
        filled: Tensor | None = None,
        memory_length: int | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPast:
        """Read a segment [B, T].

        memory: L x [B, M, k], older inputs of every layer, the last `filled` [B] of which hold
        something. With a cache they are given once, and `filled` always: their keys stay in it.
        memory_length: M, also where no memory is given (see same_length).
        attention_mask [B, n]: of the last n keys, those that are tokens. Others: what transformers
        hands to every model and has no meaning without absolute positions (position_ids).
        """
        segment = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache):
            past_key_values = DynamicCache()
        if memory is not None:
            memory_length = memory[0].shape[1]
        keys = segment.shape[1] + (0 if memory is None else memory[0].shape[1])
        if past_key_values is not None:
            keys += past_key_values.get_seq_length()
        places = self.places(
            segment,
            keys,
            unseen=_unseen(keys, attention_mask, filled, memory_length),
            span=memory_length if self.config.same_length else None,
        )
        hidden = self.dropout(segment)
        inputs: list[Any] = []
        for index, layer in enumerate(self.layers):
            if output_hidden_states:
                inputs.append(hidden)
            older = None if memory is None else memory[index].to(hidden.dtype)
            hidden = layer(hidden, places, older, past_key_values)
        hidden = self.dropout(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=past_key_values,
            hidden_states=(*inputs, hidden) if output_hidden_states else None,
        )

    def places(
        self, segment: Tensor, keys: int, *, unseen: Tensor | None = None, span: int | None = None
    ) -> Places:
        """For a segment [B, T, k] at the end of `keys` positions, some of them `unseen` [B, keys]."""
        # At least in single precision: a half knows no distance beyond 2,048.
        precise = torch.promote_types(segment.dtype, torch.float32)
        distances = column_distances(keys, self.config.clamp_len, segment.device, precise)
        columns = sinusoids(distances, self.config.d_model).to(segment.dtype)
        return Places(
            self.dropout(columns),
            hidden_keys(segment.shape[1], keys, span, unseen, segment.device),
            unseen,
            self.content_bias,
            self.position_bias,
        )


class TransformerXLForCausalLM(TransformerXLPreTrainedModel, GenerationMixin):
    """With the embeddings as output weights, and an output bias."""

    _tied_weights_keys: Any = {"lm_head.weight": "transformer.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        self.transformer = TransformerXLModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.transformer.set_input_embeddings(value)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        **arguments: Any,
    ) -> CausalLMOutputWithPast:
        """Arguments of TransformerXLModel; labels are shifted here, as transformers does."""
        found = self.transformer(input_ids, attention_mask, **arguments)
        logits = self.lm_head(found.last_hidden_state[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
        )


def _unseen(
    keys: int, attention_mask: Tensor | None, filled: Tensor | None, memory_length: int | None
) -> Tensor | None:
    """[B, keys] bool: places of the memory that hold nothing, and padding; None where there is none."""
    unseen = None
    if filled is not None:
        assert memory_length is not None
        place = torch.arange(keys, device=filled.device)
        unseen = place < (memory_length - filled)[:, None]
    if attention_mask is not None:
        padding = attention_mask == 0
        padding = nn.functional.pad(padding, (keys - padding.shape[1], 0))
        unseen = padding if unseen is None else unseen | padding
    return unseen
