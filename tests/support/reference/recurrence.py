"""The recurrence around a reference forward, for one document, window by window.

The equations, with L layers, h_i^(l) the output of layer l at position i, m slots s = 0..m-1:

    w   = softmax(alpha)                                    eq. 1   the mix of layers 1..L
    u_i = sum_l w_l h_i^(l)                                 eq. 2
    z_s = pool_s(u_0 .. u_{n-1})                            eq. 3   the state: what is carried
    r_s = FFN(z_s)                                          eq. 4   what the next window reads
    X'  = [r ; X],  Q from X,  K and V from X'              eq. 5   at insert_layer

    memory tokens: X = [FFN(memory) ; tokens ; write]       eq. 6
                   memory' = h^(L) at the write positions   eq. 7

The forwards implement eq. 5; the rest is here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .parts import gelu, linear

Span = tuple[int, int]


@dataclass
class Document:
    """What a document (or one call's part of it) gives."""

    logits: Tensor
    """[N, V]."""
    nll: list[Tensor]
    """Of every scored target."""
    state: Tensor | None
    """[m, k] behind the last window; None where nothing is carried."""
    tail: list[int]
    """The last o tokens (all, where there are fewer): what a continuation reads again."""


def cut(length: int, window: int, overlap: int) -> list[Span]:
    """Window n reads from n (T - o); the first one to reach the end is the last."""
    spans = []
    start = 0
    while True:
        end = min(start + window, length)
        spans.append((start, end))
        if end == length:
            return spans
        start += window - overlap


def keepers(spans: Sequence[Span], causal: bool) -> list[int]:
    """For every position the window whose output counts."""
    chosen = []
    for i in range(spans[-1][1]):
        if causal:
            # The first window that reads a position.
            chosen.append(next(n for n, (start, end) in enumerate(spans) if start <= i < end))
            continue
        # Both ways, the window in which the nearer edge is farther: the earlier one up to the
        # middle of what it shares with the next.
        n = 0
        while n + 1 < len(spans) and i > (spans[n][1] - 1 + spans[n + 1][0]) // 2:
            n += 1
        chosen.append(n)
    return chosen


class Recurrence:
    """One document at a time through a reference forward.

    `added` are the recurrence's own parameters by name; `options` has RecurrenceConfig's fields.
    """

    def __init__(self, backbone: Any, added: Mapping[str, Tensor], options: Any) -> None:
        self.backbone = backbone
        self.added = added
        self.options = options

    def run(
        self,
        tokens: Sequence[int],
        targets: Sequence[int | None],
        state: Tensor | None = None,
        tail: Sequence[int] = (),
    ) -> Document:
        """targets[i] is what the output at token i is scored against (None: nothing).

        `state` and `tail` continue an earlier call, and are its own: its last tokens are read again
        by the first window and give no outputs.
        """
        options = self.options
        text = [*tail, *tokens]
        spans = cut(len(text), options.window, options.overlap)
        keeper = keepers(spans, self.backbone.causal)
        if state is None and options.start == "learned" and options.carry != "none":
            state = self.added["start"]
        logits: list[Tensor] = []
        nll: list[Tensor] = []
        for n, (start, end) in enumerate(spans):
            if state is not None and options.horizon and n and n % options.horizon == 0:
                state = state.detach()
            scores, state = self._window(text[start:end], state)
            if state is not None and options.detach_state:
                state = state.detach()
            for i in range(max(start, len(tail)), end):
                if keeper[i] != n:
                    continue
                logits.append(scores[i - start])
                target = targets[i - len(tail)]
                if target is not None:
                    nll.append(-torch.log_softmax(scores[i - start], dim=0)[target])
        return Document(
            torch.stack(logits), nll, state, text[max(len(text) - options.overlap, 0) :]
        )

    def _window(self, tokens: Sequence[int], state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One window's logits and what it hands on."""
        options = self.options
        # eq. 4: the map is part of reading, so that a learned start is mapped too.
        rows = [] if state is None else [self._map(state[s]) for s in range(options.slots)]
        if options.carry == "none":
            return self.backbone.forward(tokens).logits, None
        if options.carry == "tokens":
            write = [self.added["write_embeddings"][s] for s in range(options.slots)]
            # eq. 6. Nobody sees the read positions of a first window without a start, so they are
            # left out here; the places they would take stay empty.
            empty = 0 if rows else options.slots
            result = self.backbone.forward(tokens, read=rows, write=write, first_position=empty)
            # eq. 7
            return result.logits, result.outputs[-1][-options.slots :]
        every = range(1, self.backbone.layers + 1)
        at_layers = every if options.insert_layer == "all" else [options.insert_layer]
        result = self.backbone.forward(tokens, rows=rows, at_layers=at_layers)
        return result.logits, self._pool(self._mix(result.outputs))

    def _map(self, z: Tensor) -> Tensor:
        """eq. 4: activations between the linear maps, none behind the last."""
        activation = {"relu": lambda x: x.clamp(min=0.0), "gelu": gelu}[self.options.map_activation]
        # The modules between the linear maps have no parameters, so their numbers are missing.
        numbers = sorted({int(name.split(".")[1]) for name in self.added if name.startswith("map")})
        for number in numbers:
            z = linear(z, self.added, f"map.{number}")
            if number != numbers[-1]:
                z = activation(z)
        return z

    def _mix(self, outputs: list[Tensor]) -> list[Tensor]:
        """eq. 1 and 2, at every position that is pooled."""
        count = len(outputs[0])
        if self.options.pool_positions == "non_overlap":
            count = max(count - self.options.overlap, 1)
        if self.options.mix_layers == "last":
            return [*outputs[-1][:count]]
        weights = torch.softmax(self.added["layer_logits"], dim=0)  # eq. 1
        mixed = []
        for i in range(count):
            u = torch.zeros_like(outputs[0][i])
            for layer, output in enumerate(outputs):
                u = u + weights[layer] * output[i]  # eq. 2
            mixed.append(u)
        return mixed

    def _pool(self, u: list[Tensor]) -> Tensor:
        """eq. 3, one slot after the other."""
        pooling, m, n = self.options.pooling, self.options.slots, len(u)
        slots = []
        for s in range(m):
            first = s * n // m
            end = max((s + 1) * n // m, first + 1)
            if pooling == "mean":
                z = sum(u[first:end]) / (end - first)
            elif pooling == "max":
                z = u[first]
                for vector in u[first + 1 : end]:
                    z = torch.maximum(z, vector)
            elif pooling == "last":
                z = u[max(n - m + s, 0)]
            elif pooling == "fixed-key":
                z = _weighted(u, [self.added["pool.key"][s] @ vector for vector in u])
            else:
                depth = min(64, u[0].numel())
                queries = linear(sum(u) / n, self.added, "pool.query")
                query = queries[s * depth : (s + 1) * depth]
                scores = [
                    linear(vector, self.added, "pool.key") @ query / math.sqrt(depth)
                    for vector in u
                ]
                z = _weighted(u, scores)
            slots.append(z)
        return torch.stack(slots)


def _weighted(vectors: list[Tensor], scores: list[Tensor]) -> Tensor:
    weights = torch.softmax(torch.stack(scores), dim=0)
    return sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))
