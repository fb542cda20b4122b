"""A plain model behind a sliding cache: keys and values of the last tokens, kept from window to window.

What a state of the same size is to be compared with. Positions are counted on through a document, and
what is kept stands at the places it was read at. So the model's attention must see distances (rotary
positions); keys of learnt positions say where they stood, and mean nothing behind their window.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..data.tokens import Tokens


@dataclass(frozen=True)
class Read:
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
def read_with_cache(backbone: Any, tokens: Tokens, window: int, kept: int, rows: int = 16) -> Read:
    """Read every document in windows, the keys and values of the `kept` tokens before each at hand;
    documents of one length are read side by side."""
    if getattr(backbone.config, "rope_parameters", None) is None:
        raise ValueError(
            f"A sliding cache is for models with rotary positions, and {backbone.config.model_type} has "
            "none: read it with an overlap instead."
        )
    lengths = tokens.lengths().tolist()
    nats = [0.0] * len(lengths)
    for documents in of_equal_length(lengths, rows):
        starts = tokens.bounds[documents]
        ids = np.stack([tokens.ids[start : start + lengths[documents[0]]] for start in starts])
        found = _read(backbone, torch.from_numpy(ids.astype("int64")), window, kept)
        for document, total in zip(documents, found.tolist(), strict=True):
            nats[document] = total
    return Read(nats, [max(length - 1, 0) for length in lengths])


def of_equal_length(lengths: Sequence[int], rows: int) -> Iterator[list[int]]:
    """Numbers of documents that can be read side by side."""
    for length in sorted(set(lengths)):
        alike = [document for document, own in enumerate(lengths) if own == length]
        for first in range(0, len(alike), rows):
            yield alike[first : first + rows]


def _read(backbone: Any, ids: Tensor, window: int, kept: int) -> Tensor:
    """[B] the nats of documents [B, L]."""
    ids = ids.to(backbone.device)
    total, cache = torch.zeros(len(ids), device=ids.device, dtype=torch.float64), None
    for first in range(0, ids.shape[1] - 1, window):
        last = min(first + window, ids.shape[1] - 1)
        places = torch.arange(first, last, device=ids.device).expand(len(ids), -1)
        read = backbone(
            input_ids=ids[:, first:last],
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
        )
        cache = read.past_key_values
        logits, targets = read.logits.float().transpose(1, 2), ids[:, first + 1 : last + 1]
        total += cross_entropy(logits, targets, reduction="none").sum(1)
        keep_last(cache, kept)
    return total


def keep_last(cache: Any, kept: int) -> None:
    for layer in cache.layers:
        if layer.keys is not None and layer.values is not None:
            begin = max(layer.keys.shape[2] - kept, 0)
            layer.keys, layer.values = layer.keys[:, :, begin:], layer.values[:, :, begin:]
