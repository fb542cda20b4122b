"""Llama on one window: RMS norms, rotary positions, query heads in groups that share keys."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from .parts import Forward, attend, linear, rms_norm, silu, stacked


class Llama:
    causal = True

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.layers = model.config.num_hidden_layers
        self.weights = dict(model.named_parameters(remove_duplicate=False))
        # HF computes the angles in float32 whatever the model's dtype; an oracle with exact angles
        # would differ from it in the eighth digit, so the table is HF's.
        self.rotary = model.model.rotary_emb

    def forward(
        self,
        tokens: Sequence[int],
        rows: Sequence[Tensor] = (),
        at_layers: Collection[int] = (),
        read: Sequence[Tensor] = (),
        write: Sequence[Tensor] = (),
        first_position: int = 0,
    ) -> Forward:
        """Rows are extra keys and values at_layers (from 1); read and write stand round the tokens.

        first_position is where the first embedding sits: that of the first token after read
        positions which nobody can see.
        """
        word = self.weights["model.embed_tokens.weight"]
        x = torch.stack([*read, *(word[token] for token in tokens), *write])
        positions = torch.arange(first_position, first_position + len(x))
        cos, sin = (table[0] for table in self.rotary(x, positions[None]))
        outputs = []
        for layer in range(1, self.layers + 1):
            x = self._block(layer, x, rows if layer in at_layers else (), cos, sin)
            outputs.append(x)
        outputs[-1] = self._norm(x, "model.norm")
        at_tokens = outputs[-1][len(read) : len(read) + len(tokens)]
        return Forward(self._linear(at_tokens, "lm_head"), outputs)

    def _block(
        self, layer: int, x: Tensor, rows: Sequence[Tensor], cos: Tensor, sin: Tensor
    ) -> Tensor:
        name = f"model.layers.{layer - 1}"
        width, heads = self.config.head_dim, self.config.num_attention_heads
        group = heads // self.config.num_key_value_heads
        # eq. 5: rows go through this layer's own norm and projections, as keys and values only.
        normed = self._norm(stacked(rows, x), f"{name}.input_layernorm")
        queries = self._linear(normed[len(rows) :], f"{name}.self_attn.q_proj")
        keys = self._linear(normed, f"{name}.self_attn.k_proj")
        values = self._linear(normed, f"{name}.self_attn.v_proj")
        joined = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            shared = slice(head // group * width, (head // group + 1) * width)
            # A row stands nowhere in the window: its key is left at angle 0.
            turned = torch.cat(
                [keys[: len(rows), shared], _rotate(keys[len(rows) :, shared], cos, sin)]
            )
            # Visible: every row and the positions up to one's own.
            visible = [len(rows) + i + 1 for i in range(len(x))]
            asking = _rotate(queries[:, part], cos, sin)
            joined.append(attend(asking, turned, values[:, shared], visible))
        x = x + self._linear(torch.cat(joined, dim=1), f"{name}.self_attn.o_proj")
        inner = self._norm(x, f"{name}.post_attention_layernorm")
        gate = silu(self._linear(inner, f"{name}.mlp.gate_proj"))
        inner = gate * self._linear(inner, f"{name}.mlp.up_proj")
        return x + self._linear(inner, f"{name}.mlp.down_proj")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.weights, name, self.config.rms_norm_eps)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights, name)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (j, j + d/2) of a head by the angles of its positions."""
    half = x.shape[1] // 2
    low, high = x[:, :half], x[:, half:]
    turned_low = low * cos[:, :half] - high * sin[:, :half]
    turned_high = high * cos[:, half:] + low * sin[:, half:]
    return torch.cat([turned_low, turned_high], dim=1)
