"""Self-attention with recurrence (RSA): softmax attention and a recurrence, mixed head by head.

    RSA head:    { [1 - sigmoid(mu)] softmax(Q K^T / sqrt(D) + bias) + sigmoid(mu) P } V
    other heads:                     softmax(Q K^T / sqrt(D) + bias)                   V

P is the head's recurrence encoding matrix (rem.py), which is not normalised. The first heads are the
RSA heads. Dropout falls on the softmax part alone. Three computations give the same numbers:

    dense    the mixed matrix, then its product with V
    split    fused attention, and the product of P with V
    linear   fused attention, and the scan of the recurrence: nothing of size T x T in that branch

On a GPU "linear" is one kernel that scans and mixes (scan_triton.py), where it takes the kernels, the
dtype and the width of a head; elsewhere it is the products of scan.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..ops import rsa_ops
from .rem import Kernels, RecurrenceEncoding, rem
from .scan import scan

Computation = Literal["dense", "split", "linear"]

# Of queries [B, H, T, D] to keys and values [B, H, S, D]. "dense" needs one that also has a method
# `weights(query, key)`, the matrix [B, H, T, S].
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

# From how many keys on the scan is chosen, with as many queries. Measured, forward and backward of 8
# heads of 64, 4 of them with a recurrence:
#   cpu    one core, float32: split and scan even at 256, the scan 1.3 times faster at 512 and twice
#          at 2048
#   cuda   the products of scan.py on an H200, 4 rows, bfloat16, the better of eager and compiled:
#          1.4 ms split and 2.4 ms scan at 2048, 6.8 and 3.5 at 8192. Where they meet is an estimate.
LINEAR_FROM_KEYS = {"cpu": 256, "cuda": 4096}
# With the kernel, on a GPU. Alone, a layer waits for Python at 2048 keys still (results/rsa: 2.5 ms
# linear, 1.9 split at 512, 2.6 and 2.2 at 2048), and the kernels themselves take 0.3 ms at 8192. In a
# model, where Python is ahead, what counts is that linear has fewer of them and a third of the memory.
LINEAR_FROM_KEYS_FUSED = 32


# Compared by nobody, for the reason that relative_softmax.py gives.
@dataclass(frozen=True, eq=False)
class SoftmaxAttention:
    """softmax(Q K^T / sqrt(D) + bias) V: torch's fused kernel, or the matrix.

    Queries are the last T of S positions. `bias` broadcasts to [B, H, T, S]; where it is bool, True
    marks what is read. It comes on top of the causal mask. `dropout` falls whenever it is not 0: who
    makes the attention knows whether it trains.
    """

    causal: bool = True
    bias: Tensor | None = None
    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        shares_heads = query.shape[1] != key.shape[1]
        # torch aligns its causal mask with the first key, we with the last: the same in a square.
        plain = self.causal and self.bias is None and queries == keys
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if plain else self._mask(query, keys),
            dropout_p=self.dropout,
            is_causal=plain,
            enable_gqa=shares_heads,
        )

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """The matrix [B, H, T, S], after dropout."""
        scores = query @ _for_all_heads(key, query.shape[1]).transpose(2, 3)
        scores = scores * query.shape[-1] ** -0.5
        mask = self._mask(query, key.shape[2])
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, float("-inf"))
        elif mask is not None:
            scores = scores + mask
        return F.dropout(scores.softmax(-1), self.dropout)

    def _mask(self, query: Tensor, keys: int) -> Tensor | None:
        """The causal mask and the bias in one; None where there is neither."""
        if not self.causal or query.shape[2] == 1:
            return self.bias
        seen = query.new_ones(query.shape[2], keys, dtype=torch.bool)
        seen = seen.tril(keys - query.shape[2])
        if self.bias is None:
            return seen
        if self.bias.dtype == torch.bool:
            return self.bias & seen
        return self.bias.masked_fill(~seen, float("-inf"))


def rsa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel: Kernels,
    gate: Tensor,
    attention: Attention | None = None,
    computation: Computation | None = None,
    present: Tensor | None = None,
) -> Tensor:
    """The mixture [B, H, T, D] of queries [B, H, T, D] over keys and values [B, H, S, D].

    `attention` is an `Attention` (causal softmax where None): a relative, windowed or flex attention
    takes its place whole. `present` [B, S] marks the keys there are: the recurrence reads nothing
    of the others, and the attention has a mask of its own. `computation` None: see `choose`.
    """
    attention = SoftmaxAttention() if attention is None else attention
    fused = rsa_ops.takes(kernel, value, gate)
    if computation is None:
        computation = choose(key.shape[2], query.device, query.shape[2], fused)
    if computation not in get_args(Computation):
        raise ValueError(f"computation={computation!r}: expected one of {get_args(Computation)}")
    heads, queries, keys = len(kernel.dilations), query.shape[2], key.shape[2]
    if computation == "linear" and fused:
        return _scanned_and_mixed(query, key, value, kernel, gate, attention, present)
    values = _for_all_heads(value, query.shape[1])
    if computation == "dense":
        weights = _matrix_of(attention, query, key)
        matrices = rem(kernel, queries, keys).to(weights.dtype)
        if present is not None:
            matrices = matrices.masked_fill(~present[:, None, None], 0)
        gate = gate.to(weights.dtype)
        mixed = (1 - gate) * weights[:, :heads] + gate * matrices
        return torch.cat([mixed, weights[:, heads:]], 1) @ values

    remembered = values[:, :heads]
    if present is not None:
        # Not a product with 0: what stands in an absent place may be anything.
        remembered = remembered.masked_fill(~present[:, None, :, None], 0)
    attended = attention(query, key, value)
    if computation == "split":
        recurrent = rem(kernel, queries, keys).to(value.dtype) @ remembered
    else:
        recurrent = scan(kernel, remembered, queries)
    mixed = torch.lerp(attended[:, :heads], recurrent, gate.to(attended.dtype))
    return mixed if heads == query.shape[1] else torch.cat([mixed, attended[:, heads:]], 1)


def _scanned_and_mixed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kernel: Kernels,
    gate: Tensor,
    attention: Attention,
    present: Tensor | None,
) -> Tensor:
    """ "linear" by the kernel. The order matters: see there."""
    shared_by = query.shape[1] // value.shape[1]
    # Of values that heads share, as many as the heads with a recurrence read.
    read = -(-len(kernel.dilations) // shared_by)
    remembered = value
    if shared_by > 1:
        remembered = _for_all_heads(value[:, :read], read * shared_by)
    promised = rsa_ops.promise(kernel, remembered, gate, present, query.shape[2])
    attended = attention(query, key, value)
    return rsa_ops.mix(attended, promised, kernel, remembered, gate, present)


def choose(
    keys: int, device: torch.device, queries: int | None = None, fused: bool = False
) -> Computation:
    """The scan where the matrix is large enough, else the product with it (queries None: a square).

    The scan's cost is linear and begins with a number of small products, or one kernel where it is
    `fused`; the matrix's is one product of T x S, which is little for the one query of a token that is
    being written. "dense" is never chosen: it is what the others are compared with.
    """
    least = LINEAR_FROM_KEYS.get(device.type, LINEAR_FROM_KEYS["cuda"])
    least = LINEAR_FROM_KEYS_FUSED if fused else least
    queries = keys if queries is None else queries
    return "linear" if queries * keys >= least**2 else "split"


class RSA(nn.Module):
    """The parameters of one layer's recurrence, and its attention."""

    def __init__(
        self, encoding: RecurrenceEncoding, computation: Computation | None = None
    ) -> None:
        super().__init__()
        self.encoding = encoding
        self.computation: Computation | None = computation

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention: Attention | None = None,
        present: Tensor | None = None,
    ) -> Tensor:
        return rsa(
            query,
            key,
            value,
            self.encoding(),
            self.encoding.gate(),
            attention,
            self.computation,
            present,
        )


def _matrix_of(attention: Attention, query: Tensor, key: Tensor) -> Tensor:
    weights = getattr(attention, "weights", None)
    if weights is None:
        raise ValueError(
            'computation="dense": the attention has no method weights(query, key) that gives its '
            'matrix; "split" and "linear" need none'
        )
    return weights(query, key)


def _for_all_heads(shared: Tensor, heads: int) -> Tensor:
    """Keys or values [B, H', S, D] of query heads that share them, once for each head."""
    times = heads // shared.shape[1]
    return shared if times == 1 else shared.repeat_interleave(times, 1)
