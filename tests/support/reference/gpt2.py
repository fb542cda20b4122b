"""GPT-2 on one window: pre-norm blocks, learned positions, a tied head."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from .parts import Forward, attend, gelu_tanh, layer_norm, stacked


class GPT2:
    causal = True

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.layers = model.config.n_layer
        self.weights = dict(model.named_parameters(remove_duplicate=False))

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
        word = self.weights["transformer.wte.weight"]
        place = self.weights["transformer.wpe.weight"]
        x = torch.stack([*read, *(word[token] for token in tokens), *write])
        x = x + place[first_position : first_position + len(x)]
        outputs = []
        for layer in range(1, self.layers + 1):
            x = self._block(layer, x, rows if layer in at_layers else ())
            outputs.append(x)
        outputs[-1] = self._norm(x, "transformer.ln_f")
        at_tokens = outputs[-1][len(read) : len(read) + len(tokens)]
        return Forward(at_tokens @ self.weights["lm_head.weight"].T, outputs)

    def _block(self, layer: int, x: Tensor, rows: Sequence[Tensor]) -> Tensor:
        name = f"transformer.h.{layer - 1}"
        width, heads = self.config.n_embd, self.config.n_head
        # eq. 5: rows go through this layer's own norm and projections, as keys and values only.
        normed = self._norm(stacked(rows, x), f"{name}.ln_1")
        queries, keys, values = self._conv(normed, f"{name}.attn.c_attn").split(width, dim=1)
        joined = []
        for head in range(heads):
            part = slice(head * (width // heads), (head + 1) * (width // heads))
            # Visible: every row and the positions up to one's own.
            visible = [len(rows) + i + 1 for i in range(len(x))]
            asking = queries[len(rows) :, part]
            joined.append(attend(asking, keys[:, part], values[:, part], visible))
        x = x + self._conv(torch.cat(joined, dim=1), f"{name}.attn.c_proj")
        inner = gelu_tanh(self._conv(self._norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc"))
        return x + self._conv(inner, f"{name}.mlp.c_proj")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return layer_norm(x, self.weights, name, self.config.layer_norm_epsilon)

    def _conv(self, x: Tensor, name: str) -> Tensor:
        # GPT-2's Conv1D keeps its weight [in, out].
        return x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
