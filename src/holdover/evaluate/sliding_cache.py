"""A plain model behind a sliding cache: keys and values of the last tokens, kept from window to window.

What a state of the same size is to be compared with. Positions are counted on through a document, and
what is kept stands at the places it was read at. So the model's attention must see distances (rotary
positions); keys of learnt positions say where they stood, and mean nothing behind their window.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
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
def read_with_cache(backbone: Any, tokens: Tokens, window: int, kept: int) -> Read:
    """Read every document in windows, the keys and values of the `kept` tokens before each at hand."""
    if getattr(backbone.config, "rope_parameters", None) is None:
        raise ValueError(
            f"A sliding cache is for models with rotary positions, and {backbone.config.model_type} has "
            "none: read it with an overlap instead."
        )
    nats, counts = [], []
    for start, stop in pairwise(tokens.bounds.tolist()):
        ids = torch.from_numpy(tokens.ids[start:stop].astype("int64")).to(backbone.device)
        total, cache = torch.zeros((), device=ids.device, dtype=torch.float64), None
        for first in range(0, len(ids) - 1, window):
            last = min(first + window, len(ids) - 1)
            places = torch.arange(first, last, device=ids.device)[None]
            read = backbone(
                input_ids=ids[None, first:last],
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            )
            cache = read.past_key_values
            targets = ids[first + 1 : last + 1]
            total += cross_entropy(read.logits[0].float(), targets, reduction="sum")
            keep_last(cache, kept)
        nats.append(float(total))
        counts.append(len(ids) - 1)
    return Read(nats, counts)


def keep_last(cache: Any, kept: int) -> None:
    for layer in cache.layers:
        if layer.keys is not None and layer.values is not None:
            begin = max(layer.keys.shape[2] - kept, 0)
            layer.keys, layer.values = layer.keys[:, :, begin:], layer.values[:, :, begin:]
