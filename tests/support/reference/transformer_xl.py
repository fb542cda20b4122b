"""Transformer-XL on one segment of one document, score by score from its equations.

* The memory holds what was there and nothing else: no empty places, no batch, no padding.
* Distances are counted, sinusoids written out and scores computed one by one: there is no matrix of
  distances that could be shifted wrongly.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .parts import layer_norm, linear


class TransformerXL:
    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.weights = dict(model.named_parameters(remove_duplicate=False))

    def read(
        self, segments: Sequence[Sequence[int]], memory_length: int, stop_gradient: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """[N, V] logits of a document, and the memory behind it."""
        memory: list[Tensor] | None = None
        logits = []
        for tokens in segments:
            said, inputs = self.forward(tokens, memory, memory_length)
            logits.append(said)
            older = [x[:0] for x in inputs] if memory is None else memory
            # h_mem = [SG(h_mem) ; h] cut to the last M positions; SG is an option here.
            memory = [
                torch.cat([old, x])[-memory_length:] for old, x in zip(older, inputs, strict=True)
            ]
            if stop_gradient:
                memory = [old.detach() for old in memory]
        assert memory is not None
        return torch.cat(logits), memory

    def forward(
        self, tokens: Sequence[int], memory: Sequence[Tensor] | None, memory_length: int
    ) -> tuple[Tensor, list[Tensor]]:
        """[T, V] logits, and the input [T, k] of every layer."""
        word = self.weights["transformer.embedding.weight"]
        x = torch.stack([word[token] for token in tokens]) * math.sqrt(self.config.d_model)
        inputs = []
        for layer in range(self.config.n_layer):
            inputs.append(x)
            older = x[:0] if memory is None else memory[layer]
            x = self._layer(f"transformer.layers.{layer}", x, older, memory_length)
        return x @ word.T + self.weights["lm_head.bias"], inputs

    def _layer(self, name: str, x: Tensor, older: Tensor, memory_length: int) -> Tensor:
        read = self._attention(f"{name}.attention", x, older, memory_length)
        return self._after_attention(
            name, x, linear(read, self.weights, f"{name}.attention.output")
        )

    def _after_attention(self, name: str, x: Tensor, read: Tensor) -> Tensor:
        eps = self.config.layer_norm_epsilon
        x = layer_norm(x + read, self.weights, f"{name}.attention_norm", eps)
        inner = linear(x, self.weights, f"{name}.inner")
        inner = torch.where(inner > 0, inner, torch.zeros_like(inner))
        return layer_norm(
            x + linear(inner, self.weights, f"{name}.outer"), self.weights, f"{name}.norm", eps
        )

    def _attention(self, name: str, x: Tensor, older: Tensor, memory_length: int) -> Tensor:
        """[T, H d] what the heads have read, side by side."""
        width = self.config.d_head
        u = self.weights["transformer.content_bias"]
        v = self.weights["transformer.position_bias"]
        both = torch.cat([older, x])
        queries = linear(x, self.weights, f"{name}.query")
        keys, values = linear(both, self.weights, f"{name}.key_value").chunk(2, dim=1)
        joined = []
        for i in range(len(x)):
            heads = []
            for head in range(self.config.n_head):
                part = slice(head * width, (head + 1) * width)
                query = queries[i, part]
                scores, seen = [], []
                for j in range(len(older) + i + 1):
                    distance = len(older) + i - j
                    if self.config.same_length and distance >= memory_length:
                        continue
                    place = linear(self._sinusoids(distance), self.weights, f"{name}.position")
                    by_content = (query + u[head]) @ keys[j, part]
                    by_position = (query + v[head]) @ place[part]
                    scores.append((by_content + by_position) / math.sqrt(width))
                    seen.append(values[j, part])
                weights = torch.softmax(torch.stack(scores), dim=0)
                heads.append(weights @ torch.stack(seen))
            joined.append(torch.cat(heads))
        return torch.stack(joined)

    def _sinusoids(self, distance: int) -> Tensor:
        """R: all sines, then all cosines."""
        if self.config.clamp_len is not None:
            distance = min(distance, self.config.clamp_len)
        width = self.config.d_model
        angles = [distance / 10000 ** (2 * m / width) for m in range(width // 2)]
        return torch.tensor(
            [math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64
        )
