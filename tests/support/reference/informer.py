"""Informer and RSA-Informer in float64, score by score and step by step.

s_ij = q_i . k_j for the keys j drawn for query i                                       eq. 1
M_i = max_j s_ij - (sum_j s_ij) / L                                                     eq. 2
the u queries with the largest M_i: softmax_j(q_i . k_j / sqrt(D)) V                    eq. 3
the others: mean(V), or v_0 + ... + v_i where later steps are masked                    eq. 4
u and the number of keys drawn: min(c ceil(ln L), L)                                    eq. 5
with a recurrence, eq. 3: {[1 - sigmoid(mu)] softmax + sigmoid(mu) P_i} V               eq. 6
and eq. 4 the same way, where lazy queries have a share in it                           eq. 7

A batch is a list of series [T, k]: only the halving's norm looks at all of them. What is drawn comes
from outside: one list of keys for each query, for each layer in the order they are read.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .parts import gelu, layer_norm, linear
from .rem import Head, weight


def how_many(factor: int, length: int) -> int:
    """Eq. 5, counted up from 0."""
    whole = 0
    while math.exp(whole) < length:
        whole += 1
    return min(factor * whole, length)


def circular(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """y_t = b + sum_n W_n x_{t - 1 + n}, n = 0, 1, 2, steps counted round; x [T, c], W [k, c, 3]."""
    steps = len(x)
    rows = []
    for t in range(steps):
        row = bias
        for n in range(3):
            row = row + kernel[:, :, n] @ x[(t - 1 + n) % steps]
        rows.append(row)
    return torch.stack(rows)


def sinusoid(step: int, column: int, width: int) -> float:
    angle = step / 10000 ** ((column - column % 2) / width)
    return math.cos(angle) if column % 2 else math.sin(angle)


def embed(x: Tensor, marks: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """[T, k]: convolution of the values, sinusoids of the step, linear map of the marks."""
    rows = circular(x, weights[f"{name}.value.weight"], weights[f"{name}.value.bias"])
    steps, width = rows.shape
    places = [[sinusoid(t, c, width) for c in range(width)] for t in range(steps)]
    rows = rows + torch.tensor(places, dtype=torch.float64)
    return rows + linear(marks, weights, f"{name}.time") if marks.shape[1] else rows


def distil(batch: list[Tensor], weights: dict[str, Tensor], name: str, training: bool) -> list:
    """Convolution, norm over all steps of the batch, ELU, the largest of three steps at every second."""
    kernel, bias = weights[f"{name}.conv.weight"], weights[f"{name}.conv.bias"]
    batch = [circular(x, kernel, bias) for x in batch]
    mean, variance = weights[f"{name}.norm.running_mean"], weights[f"{name}.norm.running_var"]
    if training:
        steps = torch.cat(batch)
        mean = steps.mean(0)
        variance = ((steps - mean) ** 2).mean(0)
    halved = []
    for x in batch:
        x = (x - mean) / torch.sqrt(variance + 1e-5)
        x = x * weights[f"{name}.norm.weight"] + weights[f"{name}.norm.bias"]
        x = torch.where(x > 0, x, torch.exp(x) - 1)
        rows = []
        for middle in range(0, len(x), 2):
            near = [x[t] for t in (middle - 1, middle, middle + 1) if 0 <= t < len(x)]
            rows.append(torch.stack(near).amax(0))
        halved.append(torch.stack(rows))
    return halved


def select(query: Tensor, key: Tensor, drawn: list[list[int]], count: int) -> list[int]:
    """Eqs. 1 and 2: the queries [T, D] of one head that attend."""
    measures = []
    for i, keys in enumerate(drawn):
        scores = [float((query[i] @ key[j]).detach()) for j in keys]
        measures.append(max(scores) - sum(scores) / len(key))
    return sorted(range(len(query)), key=lambda i: measures[i])[len(query) - count :]


def prob_sparse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    drawn: list[list[int]],
    factor: int,
    masked: bool,
    head: Head | None,
    gate: Tensor | None,
    lazy_rem: bool,
) -> Tensor:
    """One head, [T, D]."""
    steps = len(query)
    chosen = select(query, key, drawn, how_many(factor, steps))
    rows = []
    for i in range(steps):
        last = i if masked else steps - 1
        if i in chosen:
            row = softmax_row(query[i], key, value, last)
        else:
            row = sum_of(value[: last + 1]) / (1 if masked else steps)
        if head is not None and (i in chosen or lazy_rem):
            assert gate is not None
            row = (1 - gate) * row + gate * recurrent_row(head, i, value)
        rows.append(row)
    return torch.stack(rows)


def full(
    query: Tensor, key: Tensor, value: Tensor, masked: bool, head: Head | None, gate: Tensor | None
) -> Tensor:
    """One head, [T, D], of keys and values [S, D]."""
    rows = []
    for i in range(len(query)):
        row = softmax_row(query[i], key, value, i if masked else len(key) - 1)
        if head is not None:
            assert gate is not None
            row = (1 - gate) * row + gate * recurrent_row(head, i, value)
        rows.append(row)
    return torch.stack(rows)


def softmax_row(query: Tensor, key: Tensor, value: Tensor, last: int) -> Tensor:
    """Eq. 3, over the keys up to the last."""
    scores = torch.stack([query @ key[j] for j in range(last + 1)]) / math.sqrt(len(query))
    shares = torch.exp(scores - scores.max().detach())
    return sum_of(shares[:, None] * value[: last + 1]) / shares.sum()


def recurrent_row(head: Head, i: int, value: Tensor) -> Tensor:
    """P_i V, lag by lag."""
    return sum_of(torch.stack([weight(head, i - j) * value[j] for j in range(len(value))]))


def sum_of(rows: Tensor) -> Tensor:
    total = torch.zeros_like(rows[0])
    for row in rows:
        total = total + row
    return total


class Informer:
    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.training = model.training
        self.weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def forward(
        self,
        values: Tensor,
        marks: Tensor,
        decoder_values: Tensor,
        decoder_marks: Tensor,
        drawn: Iterator[list[list[int]]],
    ) -> Tensor:
        """[B, P, O]"""
        encoded = [
            embed(x, m, self.weights, "encoder_embedding")
            for x, m in zip(values, marks, strict=True)
        ]
        for index in range(self.config.e_layers):
            keys = next(drawn) if self.config.attention == "prob" else None
            encoded = [self.encoder_layer(x, f"encoder.{index}", keys) for x in encoded]
            if self.config.distil and index < self.config.e_layers - 1:
                encoded = distil(encoded, self.weights, f"distilling.{index}", self.training)
        encoded = [layer_norm(x, self.weights, "encoder_norm", 1e-5) for x in encoded]

        decoded = [
            embed(x, m, self.weights, "decoder_embedding")
            for x, m in zip(decoder_values, decoder_marks, strict=True)
        ]
        for index in range(self.config.d_layers):
            keys = next(drawn) if self.config.attention == "prob" else None
            decoded = [
                self.decoder_layer(x, source, f"decoder.{index}", keys)
                for x, source in zip(decoded, encoded, strict=True)
            ]
        forecasts = []
        for x in decoded:
            asked = layer_norm(x, self.weights, "decoder_norm", 1e-5)[-self.config.pred_len :]
            forecasts.append(linear(asked, self.weights, "projection"))
        return torch.stack(forecasts)

    def encoder_layer(self, x: Tensor, name: str, drawn: list[list[int]] | None) -> Tensor:
        read = self.attention(x, x, f"{name}.attention", False, drawn, recurrent=True)
        x = layer_norm(x + read, self.weights, f"{name}.attention_norm", 1e-5)
        return self.feed_forward(x, f"{name}.feed_forward")

    def decoder_layer(
        self, x: Tensor, source: Tensor, name: str, drawn: list[list[int]] | None
    ) -> Tensor:
        mix = self.config.mix
        read = self.attention(x, x, f"{name}.attention", True, drawn, recurrent=True, mix=mix)
        x = layer_norm(x + read, self.weights, f"{name}.attention_norm", 1e-5)
        read = self.attention(x, source, f"{name}.cross", False, None, recurrent=False)
        x = layer_norm(x + read, self.weights, f"{name}.cross_norm", 1e-5)
        return self.feed_forward(x, f"{name}.feed_forward")

    def feed_forward(self, x: Tensor, name: str) -> Tensor:
        inner = linear(x, self.weights, f"{name}.inner")
        inner = gelu(inner) if self.config.activation == "gelu" else inner.clamp(min=0)
        return layer_norm(
            x + linear(inner, self.weights, f"{name}.outer"), self.weights, f"{name}.norm", 1e-5
        )

    def attention(
        self,
        x: Tensor,
        source: Tensor,
        name: str,
        masked: bool,
        drawn: list[list[int]] | None,
        recurrent: bool,
        mix: bool = False,
    ) -> Tensor:
        """[T, k]; drawn: None for attention in full."""
        query, key, value = (
            linear(rows, self.weights, f"{name}.{part}")
            for part, rows in (("query", x), ("key", source), ("value", source))
        )
        width = self.config.d_model // self.config.n_heads
        heads, gate = self.recurrence(name, masked) if recurrent and self.config.rsa else ([], None)
        read = []
        for number in range(self.config.n_heads):
            columns = slice(number * width, (number + 1) * width)
            q, k, v = query[:, columns], key[:, columns], value[:, columns]
            head = heads[number] if number < len(heads) else None
            if drawn is None:
                read.append(full(q, k, v, masked, head, gate))
            else:
                lazy, factor = self.config.lazy_rem, self.config.factor
                read.append(prob_sparse(q, k, v, drawn, factor, masked, head, gate, lazy))
        rows = []
        for t in range(len(x)):
            # Mixed, row t holds the H pieces t H, t H + 1, ... of all heads' steps, head after head.
            places = [
                divmod(t * len(read) + n, len(x)) if mix else (n, t) for n in range(len(read))
            ]
            rows.append(torch.cat([read[head][step] for head, step in places]))
        return linear(torch.stack(rows), self.weights, f"{name}.output")

    def recurrence(self, name: str, masked: bool) -> tuple[list[Head], Tensor]:
        """Kinds in the order regular, cos 1, sin 1, cos 2, ..., dilated ones last; one gate a layer."""
        inside = "attend.encoding" if self.config.attention == "prob" else "attend.rsa.encoding"
        found = {
            letter: self.weights.get(f"{name}.{inside}.{letter}")
            for letter in ("eta", "nu", "theta", "mu")
        }
        zero = torch.zeros((), dtype=torch.float64)
        dilations = iter(self.config.rem_dilations)
        heads: list[Head] = []
        real = pair = 0
        for group in range(2):
            regulars, cosines, sines = self.config.rem_counts[3 * group : 3 * group + 3]
            for _ in range(regulars):
                dilation = next(dilations) if group else 1
                rate = torch.tanh(found["eta"][real])
                heads.append(self.head("regular", rate, zero, dilation, masked))
                real += 1
            for number in range(max(cosines, sines)):
                for kind, there in (("cos", number < cosines), ("sin", number < sines)):
                    if there:
                        dilation = next(dilations) if group else 1
                        rate = 1 / (1 + torch.exp(-found["nu"][pair]))
                        heads.append(self.head(kind, rate, found["theta"][pair], dilation, masked))
                pair += 1
        return heads, 1 / (1 + torch.exp(-found["mu"]))

    def head(self, kind: str, rate: Tensor, angle: Tensor, dilation: int, masked: bool) -> Head:
        return Head(kind, rate, angle, dilation, masked, self.config.rem_truncate)
