"""The recurrent layer of the Block-Recurrent Transformer (Hutchins et al. 2022), inside Transformer-XL.

    vertical     tokens:  self-attention over [memory ; block]  and  cross-attention to the state
    horizontal   state:   self-attention over the state         and  cross-attention to [memory ; block]

* Both directions read the old state: no token of a block sees how the block changes the state.
* State and tokens have one set of keys and values each, which both directions read; each direction has
  its own queries.
* The tokens' self-attention, norms and feed-forward map are those of every layer (post-norm, relative
  positions). The parts that read or write the state follow the original: queries and keys of unit length
  with a learned scale per head, no biases, norms without a mean, no dropout.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ..carries.base import Block, with_start
from ..ops.gates import GATES
from .attend import SoftmaxAttend
from .transformer_xl_config import TransformerXLConfig
from .transformer_xl_layer import Places, RelativeAttention, TransformerXLLayer

# Added under the square root of `unit`, and in the norms of the state.
EPSILON = 1e-6
FIRST_STATE = 0.1

# Keys (of unit length) and values, [B, H, S, d] each. Those of a state are computed once per block.
KeysValues = tuple[Tensor, Tensor]


def unit(vectors: Tensor) -> Tensor:
    """[..., d] scaled to unit length."""
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + EPSILON)


def read_by_direction(
    query: Tensor, key: Tensor, value: Tensor, scale: Tensor, seen: Tensor | None = None
) -> Tensor:
    """[B, T, H * d] softmax(s_h q . k) v with q and k of unit length: cosine similarity times a scale.

    query [B, H, T, d] of any norm, key and value [B, H, K, d]; scale [H]; seen [B, K] bool.
    """
    query = unit(query) * scale[:, None, None].to(query.dtype)
    mask = None if seen is None else seen[:, None, None]
    read = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    return read.transpose(1, 2).flatten(2)


class StateReadingAttention(RelativeAttention):
    """The vertical direction: 2 H heads; the second half reads the state."""

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        # Always softmax: RSA-BRT has no recurrence in the attention of its recurrent layer.
        super().__init__(config, index, attend=SoftmaxAttend(config), reads=2)
        self.state_query = nn.Linear(config.d_model, config.n_head * config.d_head, bias=False)
        self.state_scale = nn.Parameter(torch.empty(config.n_head))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.state_scale)

    def forward(
        self,
        hidden_states: Tensor,
        places: Places,
        memory: Tensor | None = None,
        past_key_values: Any = None,
        state: KeysValues | None = None,
    ) -> Tensor:
        assert state is not None
        from_tokens = self.read(hidden_states, places, memory, past_key_values)
        query = self._heads(self.state_query(hidden_states)).transpose(1, 2)
        from_state = read_by_direction(query, *state, self.state_scale)
        return self.output(torch.cat([from_tokens, from_state], -1))


class GatedMap(nn.Module):
    """z = W h, gated into the state; h is the input, or a hidden layer on top of it."""

    def __init__(
        self, config: TransformerXLConfig, inputs: int, *, hidden: bool, bounded: bool = False
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(inputs, config.d_inner, bias=False) if hidden else None
        width = config.d_inner if hidden else inputs
        self.outer = nn.Linear(width, config.d_model, bias=False)
        self.bounded = bounded
        self.gate = GATES[config.state_gate](config.d_model, width)

    def forward(self, inputs: Tensor, state: Tensor) -> Tensor:
        hidden = inputs if self.inner is None else self.inner(inputs).relu()
        new = self.outer(hidden)
        return self.gate(state, new.tanh() if self.bounded else new, hidden)


class StateUpdate(nn.Module):
    """The horizontal direction: computes the next state from a block and the old state."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        width, vectors = config.d_model, config.state_vectors
        self.heads = config.n_head
        inner = config.n_head * config.d_head
        self.start = nn.Parameter(torch.empty(vectors, width))
        # Without it, two state vectors that become equal would read the same and stay equal.
        self.identity = nn.Parameter(torch.empty(vectors, width))
        self.norm = nn.RMSNorm(width, EPSILON)
        self.state_query = nn.Linear(width, inner, bias=False)
        self.token_query = nn.Linear(width, inner, bias=False)
        self.key_value = nn.Linear(width, 2 * inner, bias=False)
        self.state_scale = nn.Parameter(torch.empty(config.n_head))
        self.token_scale = nn.Parameter(torch.empty(config.n_head))
        single = config.state_path == "single"
        self.attended = GatedMap(config, 2 * inner, hidden=single, bounded=single)
        self.mapped_norm, self.mapped = None, None
        if config.state_path == "dual":
            self.mapped_norm = nn.RMSNorm(width, EPSILON)
            self.mapped = GatedMap(config, width, hidden=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Resets everything except the matrices, which the model initialises like all others."""
        nn.init.normal_(self.start, std=FIRST_STATE)
        nn.init.normal_(self.identity)
        nn.init.ones_(self.state_scale)
        nn.init.ones_(self.token_scale)
        for part in (self.attended, self.mapped):
            if part is not None:
                part.gate.reset_parameters()

    def keys_values(self, described: Tensor) -> KeysValues:
        key, value = self.key_value(described).chunk(2, -1)
        return unit(self._heads(key)), self._heads(value)

    def described(self, state: Tensor) -> Tensor:
        """[B, S, k] the input of queries, keys and values: normed state plus identities."""
        return self.norm(state) + self.identity

    def forward(self, state: Tensor, tokens: KeysValues, seen: Tensor | None) -> Tensor:
        """[B, S, k] the next state, from this one and the `seen` [B, K] tokens of [memory ; block]."""
        described = self.described(state)
        to_state = self._heads(self.state_query(described))
        to_tokens = self._heads(self.token_query(described))
        from_state = read_by_direction(to_state, *self.keys_values(described), self.state_scale)
        from_tokens = read_by_direction(to_tokens, *tokens, self.token_scale, seen)
        state = self.attended(torch.cat([from_state, from_tokens], -1), state)
        if self.mapped is not None and self.mapped_norm is not None:
            state = self.mapped(self.mapped_norm(state), state)
        return state

    def _heads(self, values: Tensor) -> Tensor:
        """[B, S, H * d] -> [B, H, S, d]"""
        return values.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class BlockRecurrentLayer(TransformerXLLayer):
    """A layer that also reads a state, and computes the next one."""

    attention: StateReadingAttention

    def __init__(self, config: TransformerXLConfig, index: int) -> None:
        super().__init__(config, index, StateReadingAttention(config, index))
        self.update = StateUpdate(config)

    def forward(
        self,
        hidden_states: Tensor,
        places: Places,
        memory: Tensor | None = None,
        past_key_values: Any = None,
        state: KeysValues | None = None,
    ) -> Tensor:
        """state: the result of `state_keys`; with None the layer reads its learned start."""
        if state is None:
            state = self.state_keys(None, None, hidden_states.shape[0])
        read = self.attention(hidden_states, places, memory, past_key_values, state)
        return self.after_attention(hidden_states, read)

    def state_keys(self, carried: Tensor | None, present: Tensor | None, batch: int) -> KeysValues:
        """Keys and values for a whole block, from the carried state [B, S, k] or the learned start."""
        update = self.update
        if carried is None:
            # All rows start with the same state, so compute its keys and values once.
            key, value = update.keys_values(update.described(update.start[None]))
            return key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)
        state = with_start(update.start, carried, present, batch)
        return update.keys_values(update.described(state))

    def next_state(self, block: Block) -> Tensor:
        """[B, S, k] the state after a block, once all inputs of the block to this layer are known."""
        batch, length = block.inputs.shape[:2]
        state = with_start(self.update.start, block.state, block.present, batch)
        memory = None if block.memory is None else block.memory.to(block.inputs.dtype)
        key, value = self.attention.keys_values(block.inputs, memory)
        seen = None
        if block.unseen is not None:
            # Rows that read nothing get their old state back later; their softmax needs a key.
            first = torch.arange(key.shape[2], device=key.device) == key.shape[2] - length
            seen = ~block.unseen | first
        return self.update(state, (unit(key), value), seen)
