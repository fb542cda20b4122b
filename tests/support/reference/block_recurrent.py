"""The Block-Recurrent Transformer on one document: its recurrent layers, vector by vector.

* All else is the reference of Transformer-XL; one state vector, head, query and key at a time here.
* A block's tokens read the state that stood before the block, and so does the state itself.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .parts import linear, rms_norm
from .transformer_xl import TransformerXL

EPSILON = 1e-6


class BlockRecurrent(TransformerXL):
    def read(
        self, segments: Sequence[Sequence[int]], memory_length: int, stop_gradient: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """[N, V] logits and the memory; `states` then holds what each recurrent layer carries on."""
        self.states = {
            layer - 1: self.weights[f"transformer.layers.{layer - 1}.update.start"]
            for layer in self.config.recurrent_layers
        }
        self.stop_gradient = stop_gradient
        return super().read(segments, memory_length, stop_gradient)

    def _layer(self, name: str, x: Tensor, older: Tensor, memory_length: int) -> Tensor:
        number = int(name.rpartition(".")[2])
        if number not in self.states:
            return super()._layer(name, x, older, memory_length)
        state = self.states[number]
        of_tokens = self._attention(f"{name}.attention", x, older, memory_length)
        described = self._described(name, state)
        state_keys, state_values = self._keys_values(f"{name}.update", described)
        of_state = self._read_by_direction(
            linear(x, self.weights, f"{name}.attention.state_query"),
            state_keys,
            state_values,
            self.weights[f"{name}.attention.state_scale"],
        )
        read = linear(
            torch.cat([of_tokens, of_state], dim=1), self.weights, f"{name}.attention.output"
        )
        new = self._next_state(name, state, torch.cat([older, x]))
        self.states[number] = new.detach() if self.stop_gradient else new
        return self._after_attention(name, x, read)

    def _described(self, name: str, state: Tensor) -> Tensor:
        """Norm without a mean, then the name of each vector."""
        normed = rms_norm(state, self.weights, f"{name}.update.norm", EPSILON)
        return normed + self.weights[f"{name}.update.identity"]

    def _keys_values(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = linear(x, self.weights, f"{name}.key_value").chunk(2, dim=1)
        return keys, values

    def _read_by_direction(
        self, queries: Tensor, keys: Tensor, values: Tensor, scales: Tensor
    ) -> Tensor:
        """[n, H d]: every query reads every key, by s_h q . k of vectors of length one."""
        width = self.config.d_head
        joined = []
        for query in queries:
            heads = []
            for head in range(self.config.n_head):
                part = slice(head * width, (head + 1) * width)
                scores = [scales[head] * (_unit(query[part]) @ _unit(key[part])) for key in keys]
                largest = max(score.item() for score in scores)
                shares = [torch.exp(score - largest) for score in scores]
                total = sum(shares)
                read = sum(
                    share / total * value[part] for share, value in zip(shares, values, strict=True)
                )
                heads.append(read)
            joined.append(torch.cat(heads))
        return torch.stack(joined)

    def _next_state(self, name: str, state: Tensor, tokens: Tensor) -> Tensor:
        """The state behind a block; tokens [M + T, k]: the layer's inputs of [memory ; block]."""
        update = f"{name}.update"
        described = self._described(name, state)
        by_self = self._read_by_direction(
            linear(described, self.weights, f"{update}.state_query"),
            *self._keys_values(update, described),
            self.weights[f"{update}.state_scale"],
        )
        by_tokens = self._read_by_direction(
            linear(described, self.weights, f"{update}.token_query"),
            *self._keys_values(f"{name}.attention", tokens),
            self.weights[f"{update}.token_scale"],
        )
        heads = torch.cat([by_self, by_tokens], dim=1)
        path = self.config.state_path
        if path == "single":
            hidden = _relu(linear(heads, self.weights, f"{update}.attended.inner"))
            z = torch.tanh(linear(hidden, self.weights, f"{update}.attended.outer"))
            return self._gated(f"{update}.attended", state, z, hidden)
        z = linear(heads, self.weights, f"{update}.attended.outer")
        state = self._gated(f"{update}.attended", state, z, heads)
        if path == "skip":
            return state
        normed = rms_norm(state, self.weights, f"{update}.mapped_norm", EPSILON)
        hidden = _relu(linear(normed, self.weights, f"{update}.mapped.inner"))
        z = linear(hidden, self.weights, f"{update}.mapped.outer")
        return self._gated(f"{update}.mapped", state, z, hidden)

    def _gated(self, name: str, state: Tensor, z: Tensor, hidden: Tensor) -> Tensor:
        rows = []
        for c, new, h in zip(state, z, hidden, strict=True):
            if self.config.state_gate == "fixed":
                g = _sigmoid(self.weights[f"{name}.gate.bias"])
                rows.append(g * c + (1 - g) * new)
            else:
                f = _sigmoid(linear(h, self.weights, f"{name}.gate.forget") + 1)
                i = _sigmoid(linear(h, self.weights, f"{name}.gate.input") - 1)
                rows.append(f * c + i * new)
        return torch.stack(rows)


def _unit(x: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).sum() + EPSILON)


def _relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


def _sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))
