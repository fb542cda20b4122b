"""Transformer-XL (Dai et al. 2019): a decoder with relative positions that reads earlier layer inputs.

* A segment's queries read [memory ; segment]. `memory` holds older inputs of every layer. The model
  keeps no memory itself: it is the carried state (carry="memory"), or the keys of a cache.
* Layers in `recurrent_layers` also have a state: the Block-Recurrent Transformer.
* Only distances matter, so a trained model may be evaluated with a longer memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from ..ops.relative import column_distances, hidden_keys, sinusoids
from ..ops.rem import RecurrenceEncoding
from .block_recurrent import BlockRecurrentLayer, KeysValues, StateReadingAttention, StateUpdate
from .transformer_xl_config import TransformerXLConfig, check_sizes
from .transformer_xl_layer import Places, TransformerXLLayer


class ScaledEmbedding(nn.Embedding):
    """Embeddings times sqrt(k). The tied output projection uses them without this factor."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * self.embedding_dim**0.5


class TransformerXLPreTrainedModel(PreTrainedModel):
    config_class = TransformerXLConfig
    base_model_prefix = "transformer"
    _no_split_modules: Any = ("TransformerXLLayer", "BlockRecurrentLayer")
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
        elif isinstance(module, nn.RMSNorm):
            init.ones_(module.weight)
        elif isinstance(module, RecurrenceEncoding | StateReadingAttention | StateUpdate):
            # transformers initialises inner modules first, so this draws their gates again.
            module.reset_parameters()
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            init.zeros_(module.bias)


class TransformerXLModel(TransformerXLPreTrainedModel):
    """The model without a head."""

    _input_embed_layer = "embedding"

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__(config)
        check_sizes(config)
        self.embedding = ScaledEmbedding(config.vocab_size, config.d_model)
        self.content_bias = nn.Parameter(torch.empty(config.n_head, config.d_head))
        self.position_bias = nn.Parameter(torch.empty(config.n_head, config.d_head))
        self.layers = nn.ModuleList(
            BlockRecurrentLayer(config, index)
            if index + 1 in config.recurrent_layers
            else TransformerXLLayer(config, index)
            for index in range(config.n_layer)
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
        states: Mapping[int, KeysValues] | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **others: Any,
    ) -> BaseModelOutputWithPast:
        """Read a segment [B, T].

        memory: L x [B, M, k], older inputs of every layer; the last `filled` [B] positions are in use.
        With a cache, pass memory only once (its keys stay in the cache) and `filled` with every call.
        memory_length: M, also for calls without memory (see same_length).
        states: keys and values of the state for recurrent layers (index from 0); default: learned start.
        attention_mask [B, n]: which of the last n keys are tokens. Further arguments are those that
        transformers passes to every model and that relative positions do not need (position_ids).
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
            if isinstance(layer, BlockRecurrentLayer):
                state = None if states is None else states[index]
                hidden = layer(hidden, places, older, past_key_values, state)
            else:
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
        """Distances and mask of a segment [B, T, k] at the end of `keys`; `unseen` is hidden."""
        # At least float32: half precision does not represent every distance beyond 2,048.
        precise = torch.promote_types(segment.dtype, torch.float32)
        distances = column_distances(keys, self.config.clamp_len, segment.device, precise)
        columns = sinusoids(distances, self.config.d_model).to(segment.dtype)
        return Places(
            self.dropout(columns),
            hidden_keys(segment.shape[1], keys, span, unseen, segment.device),
            span,
            unseen,
            self.content_bias,
            self.position_bias,
        )


class TransformerXLForCausalLM(TransformerXLPreTrainedModel, GenerationMixin):
    """The model with a language modelling head: tied embeddings and an output bias."""

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
        """Takes the arguments of TransformerXLModel; shifts labels as transformers does."""
        output = self.transformer(input_ids, attention_mask, **arguments)
        logits = self.lm_head(output.last_hidden_state[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states,
        )


def _unseen(
    keys: int, attention_mask: Tensor | None, filled: Tensor | None, memory_length: int | None
) -> Tensor | None:
    """[B, keys] bool: empty positions of the memory, and padding. None if neither can occur."""
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
