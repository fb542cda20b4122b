"""What the three reference forwards share.

* One window of one document: nothing is batched or padded, so that a mistake in batching, masking
  or padding cannot be made twice. Attention goes head by head and query by query.
* x [n, k] holds the window's positions; what works on each position alone takes all of them.
* Only float64 weights go in; the arithmetic is written out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass
class Forward:
    """What one window gives."""

    logits: Tensor
    """[T, V], at the tokens alone."""
    outputs: list[Tensor]
    """outputs[l - 1][i] = h_i^(l): every layer, every position (reading and writing ones too).

    The last layer's are after the final norm where the model has one: HF's `hidden_states[1:]`.
    """


def layer_norm(x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    # The variance of a layer norm divides by the width, not by the width less one.
    deviation = torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps)
    return centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def rms_norm(x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
    size = torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return x / size * weights[f"{name}.weight"]


def linear(x: Tensor, weights: Weights, name: str) -> Tensor:
    """torch's Linear: weight [out, in]; the bias where there is one."""
    y = x @ weights[f"{name}.weight"].T
    bias = weights.get(f"{name}.bias")
    return y if bias is None else y + bias


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_tanh(x: Tensor) -> Tensor:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1.0 + torch.tanh(inner))


def silu(x: Tensor) -> Tensor:
    return x / (1.0 + torch.exp(-x))


def stacked(rows: Sequence[Tensor], x: Tensor) -> Tensor:
    """eq. 5: X' = [r ; X]."""
    return torch.cat([torch.stack(list(rows)), x]) if rows else x


def attend(queries: Tensor, keys: Tensor, values: Tensor, visible: Sequence[int]) -> Tensor:
    """One head: query i reads the first visible[i] keys; the scale is that of the head's width."""
    read = []
    for query, count in zip(queries, visible, strict=True):
        scores = keys[:count] @ query / math.sqrt(query.numel())
        read.append(torch.softmax(scores, dim=0) @ values[:count])
    return torch.stack(read)
