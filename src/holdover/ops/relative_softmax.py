"""Softmax over scores by content and by distance, by a kernel of our own where one fits.

* On a GPU (kernels.py) the kernel of relative_triton.py reads the product with the distances in its
  place: no bias is written, masked or shifted. To the compiler it is one operation that it does not
  look into.
* Elsewhere the scores by distance are a bias of torch's fused attention.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from .kernels import DEVICES, HAS_TRITON, is_capable
from .relative import plain_bias, position_bias, position_product
from .relative_ops import relative_attention

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDTHS = (16, 32, 64, 128)
# A tile of fewer is mostly empty: the single tokens of a text that is being written.
FEWEST_QUERIES = 16


@dataclass(frozen=True)
class PositionScores:
    """What scores owe to distance, not computed yet, and what is read at all."""

    query: Tensor  # [B, T, H, d] q_i + v, scaled
    positions: Tensor  # [W, H, d] W_R R at `column_distances`
    hidden: Tensor  # [B or 1, 1, T, K] bool: `hidden_keys` of the next two
    span: int | None
    unseen: Tensor | None  # [B, K] bool

    def bias(self) -> Tensor:
        """[B, H, T, K], -inf where a query does not read a key."""
        return position_bias(self.query, self.positions, self.hidden)

    def product(self) -> Tensor:
        """[H, B, T, C] as the kernel reads it: without the column in front that stands for no key."""
        return position_product(self.query, self.positions[1:])


# Compared by nobody: a comparison, and with it a hash, of tensors means nothing (and compilers ask for
# the hash of an object before its fields are there: torch 2.11).
@dataclass(frozen=True, eq=False)
class RelativeSoftmax:
    """softmax(q k / sqrt(d) + scores) v. `dropout` falls whenever it is not 0."""

    scores: PositionScores
    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, H, T, d], of query [B, H, T, d], key and value [B, H, K, d]."""
        scores = self.scores
        if self.dropout == 0 and kernel_fits(query, key, value, scores.query, scores.positions):
            span = key.shape[2] if scores.span is None else scores.span
            return relative_attention(query, key, value, scores.product(), scores.unseen, span)[0]
        return scaled_dot_product_attention(
            query, key, value, attn_mask=scores.bias(), dropout_p=self.dropout
        )

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """The matrix [B, H, T, K], after dropout."""
        by_content = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        scores = by_content + plain_bias(
            self.scores.query, self.scores.positions, self.scores.hidden
        )
        precise = torch.promote_types(scores.dtype, torch.float32)
        return dropout(scores.softmax(-1, dtype=precise).to(query.dtype), self.dropout)


def kernel_fits(query: Tensor, *others: Tensor) -> bool:
    return (
        HAS_TRITON
        and query.device.type in DEVICES
        and query.dtype in DTYPES
        and all(other.dtype == query.dtype for other in others)
        and query.shape[-1] in WIDTHS
        and query.shape[2] >= FEWEST_QUERIES
        and is_capable(query.device)
    )
