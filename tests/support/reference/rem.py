"""Recurrence encoding matrices and RSA heads, entry by entry in float64.

f(n) = lambda^n | gamma^n cos(n theta) | gamma^n sin(n theta)                    eq. 1
P[i, j] = f(l / d)  where l = i - j >= 1 and d divides l, else 0                  eq. 2
unmasked: l = |i - j|; truncated: 0 where l > truncate                            eq. 3
memory of M positions: query i is position M + i of M + T                         eq. 4
head = {[1 - sigmoid(mu)] softmax(Q K^T / sqrt(D) + bias) + sigmoid(mu) P} V      eq. 5
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Head:
    """One head's kernel; rate and angle are scalars, as tensors where gradients are wanted."""

    kind: str
    rate: Tensor
    angle: Tensor
    dilation: int = 1
    masked: bool = True
    truncate: int | None = None
    keep_diagonal: bool = False


def weight(head: Head, lag: int) -> Tensor:
    """Eqs. 1 to 3, for query - key = lag."""
    zero = torch.zeros((), dtype=torch.float64)
    if not head.masked:
        lag = abs(lag)
    if lag < 0 or (lag == 0 and not head.keep_diagonal) or lag % head.dilation != 0:
        return zero
    if head.truncate is not None and lag > head.truncate:
        return zero
    n = lag // head.dilation
    product = torch.ones((), dtype=torch.float64)
    for _ in range(n):
        product = product * head.rate
    if head.kind == "cos":
        return product * torch.cos(n * head.angle)
    if head.kind == "sin":
        return product * torch.sin(n * head.angle)
    assert head.kind == "regular"
    return product


def matrix(head: Head, queries: int, keys: int) -> Tensor:
    """[T, S], eq. 4."""
    memory = keys - queries
    rows = [
        torch.stack([weight(head, memory + i - j) for j in range(keys)]) for i in range(queries)
    ]
    return torch.stack(rows)


def attend(query: Tensor, key: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    """One head's softmax matrix [T, S]; query [T, D], key [S, D]."""
    queries, keys = len(query), len(key)
    rows = []
    for i in range(queries):
        last = keys - queries + i if causal else keys - 1
        scores = []
        for j in range(keys):
            score = (query[i] * key[j]).sum() / math.sqrt(query.shape[1])
            if bias is not None:
                score = score + bias[i, j]
            scores.append(score if j <= last else torch.full((), -math.inf, dtype=torch.float64))
        rows.append(torch.stack(scores).softmax(0))
    return torch.stack(rows)


def rsa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: list[Head],
    mu: Tensor,
    bias: Tensor | None = None,
    causal: bool = True,
) -> Tensor:
    """Eq. 5 for the first heads, plain attention for the others; [B, H, T, D]."""
    gate = 1 / (1 + torch.exp(-mu))
    batch = []
    for b in range(query.shape[0]):
        outputs = []
        for h in range(query.shape[1]):
            weights = attend(query[b, h], key[b, h], None if bias is None else bias[b, h], causal)
            if h < len(heads):
                recurrence = matrix(heads[h], query.shape[2], key.shape[2])
                weights = (1 - gate) * weights + gate * recurrence
            outputs.append(weights @ value[b, h])
        batch.append(torch.stack(outputs))
    return torch.stack(batch)


def linear_rnn(recurrent: Tensor, inputs: Tensor, sequence: Tensor) -> Tensor:
    """h_t = W_h h_{t-1} + W_x x_t from h = 0; sequence [T, e] -> [T, k]."""
    hidden = torch.zeros(len(recurrent), dtype=torch.float64)
    found = []
    for x in sequence:
        hidden = recurrent @ hidden + inputs @ x
        found.append(hidden)
    return torch.stack(found)
