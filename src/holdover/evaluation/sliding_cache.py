"""A plain model with a sliding cache: the keys and values of the last tokens, kept between windows.

It is the baseline for a state of the same size. Positions count from the first kept token, so that
no distance becomes larger than in training: when tokens are dropped, the keys of the others are
rotated to their new positions. That needs rotary positions; a learned position cannot be removed
from a key.

Deep models put much of their attention on the first token of a text, and predict badly without it.
So the `first` tokens of every document can be kept in addition to the last ones (Xiao et al.,
Efficient Streaming Language Models with Attention Sinks).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..text.tokens import Tokens


@dataclass(frozen=True)
class CachedReading:
    """The loss of each document of a text."""

    nats: list[float]
    tokens: list[int]

    def mean(self) -> float:
        return sum(self.nats) / sum(self.tokens)


def bytes_a_token(config: Any, dtype: torch.dtype) -> int:
    """Bytes of one token's keys and values in all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * dtype.itemsize


@torch.no_grad()
def read_with_cache(
    backbone: Any, tokens: Tokens, window: int, kept: int, rows: int = 16, first: int = 0
) -> CachedReading:
    """Read every document in windows, with the cached keys and values of its `first` tokens and of the
    `kept` tokens before each window. Documents of one length share a batch."""
    if getattr(backbone.config, "rope_parameters", None) is None:
        raise ValueError(
            f"A sliding cache needs rotary positions, and {backbone.config.model_type} has none: read "
            "it with an overlap instead."
        )
    check_reads_far(backbone.config)
    room = Room(first, kept, frequencies(backbone))
    lengths = tokens.lengths().tolist()
    nats = [0.0] * len(lengths)
    for documents in of_equal_length(lengths, rows):
        starts = tokens.bounds[documents]
        ids = np.stack([tokens.ids[start : start + lengths[documents[0]]] for start in starts])
        totals = _read(backbone, torch.from_numpy(ids.astype("int64")), window, room)
        for document, total in zip(documents, totals.tolist(), strict=True):
            nats[document] = total
    return CachedReading(nats, [max(length - 1, 0) for length in lengths])


def of_equal_length(lengths: Sequence[int], rows: int) -> Iterator[list[int]]:
    """Numbers of documents that can share a batch."""
    for length in sorted(set(lengths)):
        alike = [document for document, own in enumerate(lengths) if own == length]
        for first in range(0, len(alike), rows):
            yield alike[first : first + rows]


def _read(backbone: Any, ids: Tensor, window: int, room: "Room") -> Tensor:
    """[B] the nats of documents [B, L]."""
    ids = ids.to(backbone.device)
    total, cache, held = torch.zeros(len(ids), device=ids.device, dtype=torch.float64), None, 0
    for begin in range(0, ids.shape[1] - 1, window):
        end = min(begin + window, ids.shape[1] - 1)
        places = torch.arange(held, held + end - begin, device=ids.device).expand(len(ids), -1)
        read = backbone(
            input_ids=ids[:, begin:end],
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        )
        cache = read.past_key_values
        logits, targets = read.logits.float().transpose(1, 2), ids[:, begin + 1 : end + 1]
        total += cross_entropy(logits, targets, reduction="none").sum(1)
        held = room.make(cache, held + end - begin)
    return total


def check_reads_far(config: Any) -> None:
    """Refuse models with a sliding window of their own, or whose rotation depends on text length."""
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    rope = config.rope_parameters.get("rope_type", "default")
    reason = "slides its own window" if slides else f"rotates by text length ({rope})"
    if slides or rope in ("dynamic", "longrope"):
        raise ValueError(
            "A sliding cache needs attention that depends only on distances, and "
            f"{config.model_type} {reason}: read it with an overlap instead."
        )


def frequencies(backbone: Any) -> Tensor:
    """[d / 2] the angle by which one position rotates each pair of a key's numbers."""
    inverse_frequencies = [
        module.inv_freq
        for name, module in backbone.named_modules()
        if name.endswith("rotary_emb") and isinstance(getattr(module, "inv_freq", None), Tensor)
    ]
    config = backbone.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if len(inverse_frequencies) != 1 or 2 * len(inverse_frequencies[0]) != width:
        raise ValueError(
            f"A sliding cache rotates whole keys by one set of frequencies, and {config.model_type} "
            "has other ones (or rotates parts of keys): read it with an overlap instead."
        )
    return inverse_frequencies[0]


@dataclass(frozen=True)
class Room:
    """The tokens that a cache keeps: the first ones, and the last `kept` ones."""

    first: int
    kept: int
    frequencies: Tensor

    def make(self, cache: Any, held: int) -> int:
        """Drop tokens until the rest fits, moved to consecutive positions; returns how many are left."""
        left = min(held, self.first + self.kept)
        moved = left - held
        if moved == 0:
            return held
        begin = held - (left - self.first)
        for layer in cache.layers:
            if layer.keys is None or layer.values is None:
                continue
            keys = self._turned(layer.keys[:, :, begin:], moved)
            layer.keys = torch.cat([layer.keys[:, :, : self.first], keys], 2)
            layer.values = torch.cat(
                [layer.values[:, :, : self.first], layer.values[:, :, begin:]], 2
            )
        return left

    def _turned(self, keys: Tensor, places: int) -> Tensor:
        """[B, H, n, d] the keys of the same tokens, moved by `places` positions."""
        exact = torch.promote_types(keys.dtype, torch.float32)
        angles = (places * self.frequencies.to(keys.device, exact)).repeat(2)
        keys, given = keys.to(exact), keys.dtype
        one, other = keys.chunk(2, -1)
        return (keys * angles.cos() + torch.cat([-other, one], -1) * angles.sin()).to(given)
