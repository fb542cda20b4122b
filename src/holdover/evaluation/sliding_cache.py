"""A plain model behind a sliding cache: keys and values of the last tokens, kept from window to window.

What a state of the same size is to be compared with. Positions are counted from the first token that is
kept, so that no distance grows beyond what the model has seen: keys move with their tokens. For that its
positions must be rotary; keys of learnt positions say where they stood, and mean nothing elsewhere.

Deep models rest their attention on the first token of a text, and read badly without one. `first` tokens
of every document can be kept beside the last ones (Xiao et al., Efficient Streaming Language Models with
Attention Sinks).
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
    """What the documents of a text cost, one number each."""

    nats: list[float]
    tokens: list[int]

    def mean(self) -> float:
        return sum(self.nats) / sum(self.tokens)


def bytes_a_token(config: Any, dtype: torch.dtype) -> int:
    """Of the keys and values of all layers."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * dtype.itemsize


@torch.no_grad()
def read_with_cache(
    backbone: Any, tokens: Tokens, window: int, kept: int, rows: int = 16, first: int = 0
) -> CachedReading:
    """Read every document in windows, the keys and values of its `first` tokens and of the `kept` ones
    before each window at hand; documents of one length are read side by side."""
    if getattr(backbone.config, "rope_parameters", None) is None:
        raise ValueError(
            f"A sliding cache is for models with rotary positions, and {backbone.config.model_type} has "
            "none: read it with an overlap instead."
        )
    check_reads_far(backbone.config)
    room = Room(first, kept, frequencies(backbone))
    lengths = tokens.lengths().tolist()
    nats = [0.0] * len(lengths)
    for documents in of_equal_length(lengths, rows):
        starts = tokens.bounds[documents]
        ids = np.stack([tokens.ids[start : start + lengths[documents[0]]] for start in starts])
        found = _read(backbone, torch.from_numpy(ids.astype("int64")), window, room)
        for document, total in zip(documents, found.tolist(), strict=True):
            nats[document] = total
    return CachedReading(nats, [max(length - 1, 0) for length in lengths])


def of_equal_length(lengths: Sequence[int], rows: int) -> Iterator[list[int]]:
    """Numbers of documents that can be read side by side."""
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
    """Refuse models that slide a window of their own, or turn keys otherwise the longer a text is."""
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    turns = config.rope_parameters.get("rope_type", "default")
    why = "slides its own window" if slides else f"has rotary positions that grow ({turns})"
    if slides or turns in ("dynamic", "longrope"):
        raise ValueError(
            f"A sliding cache is for models that read any distance alike, and {config.model_type} "
            f"{why}: read it with an overlap instead."
        )


def frequencies(backbone: Any) -> Tensor:
    """[d / 2] by how much a position turns each pair of a key's numbers."""
    found = [
        module.inv_freq
        for name, module in backbone.named_modules()
        if name.endswith("rotary_emb") and isinstance(getattr(module, "inv_freq", None), Tensor)
    ]
    config = backbone.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if len(found) != 1 or 2 * len(found[0]) != width:
        raise ValueError(
            f"A sliding cache turns whole keys by one set of frequencies, and {config.model_type} has "
            "others: read it with an overlap instead."
        )
    return found[0]


@dataclass(frozen=True)
class Room:
    """What a cache has room for."""

    first: int
    kept: int
    frequencies: Tensor

    def make(self, cache: Any, held: int) -> int:
        """Leave what there is room for, at the places behind one another; gives how many that are."""
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
        """[B, H, n, d] the keys of tokens that stand so many places farther on."""
        exact = torch.promote_types(keys.dtype, torch.float32)
        angles = (places * self.frequencies.to(keys.device, exact)).repeat(2)
        keys, given = keys.to(exact), keys.dtype
        one, other = keys.chunk(2, -1)
        return (keys * angles.cos() + torch.cat([-other, one], -1) * angles.sin()).to(given)
