"""Pooling: the positions of a window become one vector a slot.

* Tokens come first in a window, so the pooled positions are always a prefix: `length` positions, an int
  where all rows agree, else [B].
* With m slots, mean and max take m equal stretches of the window, last takes the last m positions,
  and the two attention poolings have one query a slot.
"""

import torch
from torch import Tensor, nn

from .base import counts

ATTENTION_POOL_WIDTH = 64


def stretches(length: int | Tensor, slots: int, positions: int, device: torch.device) -> Tensor:
    """[B or 1, m, T] bool: slot s holds positions floor(s n / m) up to floor((s+1) n / m).

    Fewer positions than slots: each slot holds one, some the same.
    """
    count = counts(length, device)[:, None]
    slot = torch.arange(slots, device=device)[None]
    first = (slot * count) // slots
    end = torch.maximum(((slot + 1) * count) // slots, first + 1)
    position = torch.arange(positions, device=device)
    return (position >= first[..., None]) & (position < end[..., None])


class Pool(nn.Module):
    """[B, T, k] and a length -> [B, m, k]."""

    # A linear pooling may be applied to each layer before the layers are mixed.
    linear = False

    def __init__(self, width: int, slots: int) -> None:
        super().__init__()
        self.slots = slots

    def reset_parameters(self) -> None:
        pass


class MeanPool(Pool):
    linear = True

    def forward(self, hidden: Tensor, length: int | Tensor) -> Tensor:
        if self.slots == 1 and isinstance(length, int):
            return hidden[:, :length].mean(1, keepdim=True)
        held = stretches(length, self.slots, hidden.shape[1], hidden.device).to(hidden.dtype)
        weights = held / held.sum(-1, keepdim=True)
        if self.slots == 1:
            # No matrix product: under autocast it would be in half precision, and the mean above is not.
            return (weights.transpose(1, 2) * hidden).sum(1, keepdim=True)
        return weights.expand(hidden.shape[0], -1, -1) @ hidden


class MaxPool(Pool):
    def forward(self, hidden: Tensor, length: int | Tensor) -> Tensor:
        held = stretches(length, self.slots, hidden.shape[1], hidden.device)
        slots = [
            hidden.masked_fill(~held[:, slot, :, None], float("-inf")).amax(1)
            for slot in range(self.slots)
        ]
        return torch.stack(slots, 1)


class LastPool(Pool):
    linear = True

    def forward(self, hidden: Tensor, length: int | Tensor) -> Tensor:
        count = counts(length, hidden.device)[:, None]
        index = count - self.slots + torch.arange(self.slots, device=hidden.device)
        index = index.clamp(min=0).expand(hidden.shape[0], -1)
        return hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[-1]))


class FixedKeyPool(Pool):
    """z_s = sum_i softmax_i(key_s . u_i) u_i with a learned key a slot."""

    def __init__(self, width: int, slots: int) -> None:
        super().__init__(width, slots)
        self.key = nn.Parameter(torch.empty(slots, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.key, std=0.02)

    def forward(self, hidden: Tensor, length: int | Tensor) -> Tensor:
        return _attend(hidden @ self.key.T, hidden, length)


class AttentionPool(Pool):
    """As fixed-key, with the query of each slot computed from the mean of the window."""

    def __init__(self, width: int, slots: int) -> None:
        super().__init__(width, slots)
        self.inner = min(ATTENTION_POOL_WIDTH, width)
        self.query = nn.Linear(width, slots * self.inner)
        self.key = nn.Linear(width, self.inner)

    def reset_parameters(self) -> None:
        self.query.reset_parameters()
        self.key.reset_parameters()

    def forward(self, hidden: Tensor, length: int | Tensor) -> Tensor:
        held = stretches(length, 1, hidden.shape[1], hidden.device).to(hidden.dtype)
        mean = (held / held.sum(-1, keepdim=True)).expand(hidden.shape[0], -1, -1) @ hidden
        query = self.query(mean[:, 0]).reshape(-1, self.slots, self.inner)
        scores = self.key(hidden) @ query.transpose(1, 2) * self.inner**-0.5
        return _attend(scores, hidden, length)


def _attend(scores: Tensor, hidden: Tensor, length: int | Tensor) -> Tensor:
    """scores [B, T, m] -> softmax over the pooled positions -> [B, m, k]."""
    held = stretches(length, 1, hidden.shape[1], hidden.device)
    scores = scores.masked_fill(~held.transpose(1, 2), float("-inf"))
    return scores.softmax(1).transpose(1, 2) @ hidden


POOLS: dict[str, type[Pool]] = {
    "mean": MeanPool,
    "max": MaxPool,
    "last": LastPool,
    "attention": AttentionPool,
    "fixed-key": FixedKeyPool,
}
