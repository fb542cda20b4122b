"""BERT on one window: attention both ways, norms after the sums, the masked-language-model head."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from .parts import Forward, attend, gelu, layer_norm, linear, stacked


class Bert:
    causal = False

    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.layers = model.config.num_hidden_layers
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
        name = "bert.embeddings"
        word = self.weights[f"{name}.word_embeddings.weight"]
        place = self.weights[f"{name}.position_embeddings.weight"]
        kind = self.weights[f"{name}.token_type_embeddings.weight"][0]
        x = torch.stack([*read, *(word[token] for token in tokens), *write])
        x = x + kind + place[first_position : first_position + len(x)]
        x = self._norm(x, f"{name}.LayerNorm")
        outputs = []
        for layer in range(1, self.layers + 1):
            x = self._block(layer, x, rows if layer in at_layers else ())
            outputs.append(x)
        at_tokens = x[len(read) : len(read) + len(tokens)]
        name = "cls.predictions"
        inner = gelu(self._linear(at_tokens, f"{name}.transform.dense"))
        inner = self._norm(inner, f"{name}.transform.LayerNorm")
        return Forward(self._linear(inner, f"{name}.decoder"), outputs)

    def _block(self, layer: int, x: Tensor, rows: Sequence[Tensor]) -> Tensor:
        name = f"bert.encoder.layer.{layer - 1}"
        heads = self.config.num_attention_heads
        width = self.config.hidden_size // heads
        # eq. 5: as keys and values only. A post-norm layer has no norm before its projections.
        seen = stacked(rows, x)
        queries = self._linear(x, f"{name}.attention.self.query")
        keys = self._linear(seen, f"{name}.attention.self.key")
        values = self._linear(seen, f"{name}.attention.self.value")
        joined = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            visible = [len(seen)] * len(x)
            joined.append(attend(queries[:, part], keys[:, part], values[:, part], visible))
        attended = self._linear(torch.cat(joined, dim=1), f"{name}.attention.output.dense")
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        inner = gelu(self._linear(x, f"{name}.intermediate.dense"))
        inner = self._linear(inner, f"{name}.output.dense")
        return self._norm(x + inner, f"{name}.output.LayerNorm")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return layer_norm(x, self.weights, name, self.config.layer_norm_eps)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self.weights, name)
