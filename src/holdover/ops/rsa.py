"""Self-attention with recurrence (RSA): softmax attention and a recurrence, mixed head by head.

    RSA head:    { [1 - sigmoid(mu)] softmax(Q K^T / sqrt(D) + bias) + sigmoid(mu) P } V
    other heads:                     softmax(Q K^T / sqrt(D) + bias)                   V

P is the head's recurrence encoding matrix (rem.py), which is not normalised. The RSA heads come first.
Dropout applies to the softmax part only. Three computations give the same numbers:

    dense    the mixed matrix, then its product with V
    split    fused attention, and the product of P with V
    linear   fused attention, and the scan of the recurrence, which makes nothing of size T x T

On a GPU, "linear" is one kernel that scans and mixes (scan_triton.py), if it supports the settings,
dtype and head width; otherwise it uses the matrix products of scan.py.
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

# Called with queries [B, H, T, D], keys and values [B, H, S, D]. For "dense" it also needs a method
# `weights(query, key)` that returns the matrix [B, H, T, S].
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

# The number of keys (with as many queries) from which `choose` takes the scan. Measured forward and
# backward with 8 heads of 64, 4 of them with a recurrence:
#   cpu    one core, float32: split and scan equal at 256; the scan 1.3 times faster at 512 and twice as
#          fast at 2048
#   cuda   scan.py on an H200, 4 rows, bfloat16, the better of eager and compiled: split 1.4 ms and scan
#          2.4 ms at 2048, 6.8 and 3.5 at 8192. The threshold between is an estimate.
LINEAR_FROM_KEYS = {"cpu": 256, "cuda": 4096}
# The same with the kernel on a GPU. A single layer still waits for Python at 2048 keys (results/rsa:
# linear 2.5 ms and split 1.9 ms at 512, 2.6 and 2.2 at 2048), while the kernels take 0.3 ms at 8192. In
# a whole model, Python runs ahead of the GPU; linear has fewer kernels and a third of the memory.
LINEAR_FROM_KEYS_FUSED = 32


# eq=False for the reason given in relative_softmax.py.
@dataclass(frozen=True, eq=False)
class SoftmaxAttention:
    """softmax(Q K^T / sqrt(D) + bias) V: torch's fused kernel, or the matrix.

    Queries are the last T of S positions. `bias` broadcasts to [B, H, T, S] and applies in addition to
    the causal mask; in a bool bias, True marks keys that are read. `dropout` applies even outside
    training: the caller sets it to 0 there.
    """

    causal: bool = True
    bias: Tensor | None = None
    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        queries, keys = query.shape[2], key.shape[2]
        shares_heads = query.shape[1] != key.shape[1]
        # torch aligns its causal mask with the first key, we with the last. A square mask is the same.
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
        """Causal mask and bias combined, or None without either."""
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
    """The mixture [B, H, T, D] for queries [B, H, T, D] over keys and values [B, H, S, D].

    `attention` computes the softmax part (None: causal softmax); it may be a relative, windowed or flex
    attention. `present` [B, S] marks the keys that the recurrence reads; the attention has its own mask.
    With `computation` None, `choose` selects one.
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

    recurrent_values = values[:, :heads]
    if present is not None:
        # A product with 0 would keep nan or inf, which absent positions may contain.
        recurrent_values = recurrent_values.masked_fill(~present[:, None, :, None], 0)
    attended = attention(query, key, value)
    if computation == "split":
        recurrent = rem(kernel, queries, keys).to(value.dtype) @ recurrent_values
    else:
        recurrent = scan(kernel, recurrent_values, queries)
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
    """ "linear" with the kernel. rsa_ops.py explains why the promise comes before the attention."""
    shared_by = query.shape[1] // value.shape[1]
    recurrent_values = value
    if shared_by > 1:
        # Expand only the shared value heads that heads with a recurrence read.
        read = -(-len(kernel.dilations) // shared_by)
        recurrent_values = _for_all_heads(value[:, :read], read * shared_by)
    promised = rsa_ops.promise(kernel, recurrent_values, gate, present, query.shape[2])
    attended = attention(query, key, value)
    return rsa_ops.mix(attended, promised, kernel, recurrent_values, gate, present)


def choose(
    keys: int, device: torch.device, queries: int | None = None, fused: bool = False
) -> Computation:
    """ "linear" if the matrix is large, otherwise "split" (queries None: as many as keys).

    The scan costs several small products, or one kernel if `fused`, and then grows linearly. The
    matrix costs one product of T x S, which is small for the single query of generation. "dense" is
    never chosen; it is the reference for the others.
    """
    least = LINEAR_FROM_KEYS.get(device.type, LINEAR_FROM_KEYS["cuda"])
    least = LINEAR_FROM_KEYS_FUSED if fused else least
    queries = keys if queries is None else queries
    return "linear" if queries * keys >= least**2 else "split"


class RSA(nn.Module):
    """RSA attention with the parameters of one layer's recurrence."""

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
            'computation="dense" needs an attention with a method weights(query, key) that returns its '
            'matrix; use "split" or "linear" with this one'
        )
    return weights(query, key)


def _for_all_heads(shared: Tensor, heads: int) -> Tensor:
    """Keys or values [B, H', S, D] that query heads share, repeated for each head."""
    times = heads // shared.shape[1]
    return shared if times == 1 else shared.repeat_interleave(times, 1)
