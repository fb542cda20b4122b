"""The attention of Informer: full, or of few queries (ProbSparse), with or without a recurrence.

ProbSparse, for queries i of L_Q and keys j of L_K (Zhou et al. 2021, as their code computes it):

    s_ij = q_i . k_j           for min(c ceil(ln L_K), L_K) keys j, drawn at random for each i       (1)
    M_i  = max_j s_ij - sum_j s_ij / L_K                                                             (2)
    the min(c ceil(ln L_Q), L_Q) queries of the largest M attend: softmax(q_i K^T / sqrt(D)) V       (3)
    every other (lazy) query reads mean(V); if masked, the running sum of V up to itself             (4)

* Keys are drawn with replacement, one sample for all rows and heads. The scores of (1) are not scaled,
  and (2) divides by the number of all keys, not of the drawn ones. There is no dropout.
* If masked, (3) reads no later key. But (2) compares queries by keys at any step: which queries attend
  depends on later steps too. Nothing else does.
* With a recurrence (ops/rsa.py), (3) of the first heads is { [1 - g] softmax(..) + g P } V, where P has
  the rows of the queries that attend and g = sigmoid(mu). Lags count the steps that the layer reads,
  which are halved after a halving. With lazy_rem, (4) becomes [1 - g] (4) + g P V.
"""

import math
import random

import torch
from torch import Tensor, nn

from ...ops.rem import RecurrenceEncoding, rem
from ...ops.rsa import RSA, SoftmaxAttention
from ...ops.scan import scan
from .informer_config import InformerConfig

# Queries measured at once on a GPU.
BLOCK_ON_A_GPU = 256


def how_many(factor: int, length: int) -> int:
    """min(c ceil(ln L), L): the number of queries that attend, and of keys that are sampled."""
    return min(factor * math.ceil(math.log(length)), length)


def evaluation_generator(seed: int, length: int) -> torch.Generator:
    """A CPU generator that depends only on the seed and the length."""
    # torch's generator uses only the lower 32 bits of its seed, so both numbers must affect them.
    both = random.Random(f"{seed} {length}").getrandbits(32)
    return torch.Generator().manual_seed(both)


@torch.no_grad()
def select_queries(query: Tensor, key: Tensor, sample: Tensor, count: int) -> Tensor:
    """[B, H, count]: the queries with the largest measure (2), unordered; sample: keys [T, U].

    The choice has no gradient. Each block of queries is multiplied with all keys and then sampled. That
    takes little memory (on a CPU no more than the scores of the queries that attend) and less time than
    gathering U keys per query (on a CPU a tenth of it at 96 steps, a quarter at 336, half at 720). For
    thousands of steps, gathering would be faster.
    """
    measures = []
    # Many small products would leave a GPU idle.
    block = max(sample.shape[1], BLOCK_ON_A_GPU if query.is_cuda else 0)
    # Rows and heads in one axis: a product of four axes would copy all keys for every block.
    queries, keys = query.flatten(0, 1), key.flatten(0, 1)
    for some, drawn in zip(queries.split(block, 1), sample.split(block), strict=True):
        scores = some @ keys.transpose(1, 2)
        scores = scores.gather(2, drawn.expand(len(scores), -1, -1))
        measures.append(scores.amax(2) - scores.sum(2) / key.shape[2])
    measure = torch.cat(measures, 1).unflatten(0, query.shape[:2])
    return measure.topk(count, sorted=False).indices


class ProbSparse(nn.Module):
    """Queries, keys and values [B, H, L, D] of the same steps -> [B, H, L, D]."""

    def __init__(self, config: InformerConfig, masked: bool) -> None:
        super().__init__()
        self.config = config
        self.masked = masked
        self.encoding = build_encoding(config, masked) if config.rsa else None
        self.generator: torch.Generator | None = None
        """The generator of samples in training; None is torch's own for the device."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[2]
        sample = self.sample(length, query.device)
        chosen = select_queries(query, key, sample, how_many(self.config.factor, length))
        place = chosen[..., None].expand(-1, -1, -1, query.shape[3])
        seen = chosen[..., None] >= torch.arange(length, device=query.device)
        attention = SoftmaxAttention(causal=False, bias=seen if self.masked else None)
        attended = attention(query.gather(2, place), key, value)
        if self.encoding is not None and not self.config.lazy_rem:
            heads = self.encoding.heads
            rows = rem(self.encoding(), length, rows=chosen[:, :heads])
            attended = self._mixed(attended, rows.to(value.dtype) @ value[:, :heads])
        read = self._lazy(value).scatter(2, place, attended)
        if self.encoding is not None and self.config.lazy_rem:
            read = self._mixed(read, scan(self.encoding(), value[:, : self.encoding.heads]))
        return read

    def sample(self, length: int, device: torch.device) -> Tensor:
        """[L, U] keys for the queries, drawn anew at each call in training.

        In evaluation they depend only on the configuration's seed and the length. So, apart from
        rounding, the forecast of a window depends neither on the device nor on other windows.
        """
        shape = (length, how_many(self.config.factor, length))
        if not self.training:
            generator = evaluation_generator(self.config.sample_seed, length)
        elif self.generator is None:
            return torch.randint(length, shape, device=device)
        else:
            generator = self.generator
        return torch.randint(length, shape, generator=generator, device=generator.device).to(device)

    def _lazy(self, value: Tensor) -> Tensor:
        """(4); running sums of many values need more than half precision."""
        if self.masked:
            precise = torch.promote_types(value.dtype, torch.float32)
            return value.cumsum(2, dtype=precise).to(value.dtype)
        return value.mean(2, keepdim=True).expand_as(value)

    def _mixed(self, attended: Tensor, recurrent: Tensor) -> Tensor:
        """The first heads mixed with their recurrence, the others unchanged."""
        assert self.encoding is not None
        heads = self.encoding.heads
        gate = self.encoding.gate().to(attended.dtype)
        mixed = torch.lerp(attended[:, :heads], recurrent, gate)
        return torch.cat([mixed, attended[:, heads:]], 1)


class FullAttention(nn.Module):
    """Every query reads every key (if masked, every key that is not later), with dropout of weights."""

    def __init__(self, config: InformerConfig, masked: bool, recurrent: bool) -> None:
        super().__init__()
        self.masked = masked
        self.dropout = config.dropout
        self.rsa = RSA(build_encoding(config, masked)) if recurrent else None

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        attention = SoftmaxAttention(self.masked, dropout=self.dropout if self.training else 0.0)
        if self.rsa is None:
            return attention(query, key, value)
        return self.rsa(query, key, value, attention)


class HeadsAttention(nn.Module):
    """An attention with its projections to heads and back."""

    def __init__(self, config: InformerConfig, attend: nn.Module, mix: bool = False) -> None:
        super().__init__()
        width = config.d_model
        self.heads = config.n_heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.attend = attend
        self.mix = mix

    def forward(self, hidden: Tensor, source: Tensor | None = None) -> Tensor:
        """[B, T, k]: queries from `hidden`; keys and values from the source [B, S, k], or `hidden`."""
        source = hidden if source is None else source
        read = self.attend(
            self._split(self.query(hidden)),
            self._split(self.key(source)),
            self._split(self.value(source)),
        )
        if self.mix:
            # All steps of head 1, then of head 2, ..., cut into T rows: see InformerConfig.mix.
            return self.output(read.reshape(hidden.shape))
        return self.output(read.transpose(1, 2).flatten(2))

    def _split(self, projected: Tensor) -> Tensor:
        """[B, T, H * D] -> [B, H, T, D]"""
        return projected.unflatten(2, (self.heads, -1)).transpose(1, 2)


def self_attention(config: InformerConfig, masked: bool, mix: bool = False) -> HeadsAttention:
    if config.attention == "full":
        return HeadsAttention(config, FullAttention(config, masked, config.rsa), mix)
    return HeadsAttention(config, ProbSparse(config, masked), mix)


def cross_attention(config: InformerConfig) -> HeadsAttention:
    """Full, and without a recurrence: two sequences have no lag between them."""
    return HeadsAttention(config, FullAttention(config, masked=False, recurrent=False))


def build_encoding(config: InformerConfig, masked: bool) -> RecurrenceEncoding:
    return RecurrenceEncoding(
        config.rem_counts,
        config.rem_dilations,
        gate=config.rem_gate,
        masked=masked,
        truncate=config.rem_truncate,
    )
