"""The attention of Informer: in full, or of few queries (ProbSparse); with a recurrence in it or not.

ProbSparse, for queries i of L_Q and keys j of L_K (Zhou et al. 2021, as their code computes it):

    s_ij = q_i . k_j           for min(c ceil(ln L_K), L_K) keys j, drawn at random for each i       (1)
    M_i  = max_j s_ij - sum_j s_ij / L_K                                                             (2)
    the min(c ceil(ln L_Q), L_Q) queries of the largest M attend: softmax(q_i K^T / sqrt(D)) V       (3)
    every other one, lazy, reads mean(V); masked, the running sum of V up to itself                  (4)

* Drawn with replacement, one sample for all rows and heads; the scores of (1) are not scaled, and (2)
  divides by all keys, not by those drawn. No dropout.
* Masked, (3) reads no later key. But (2) compares queries by keys of any place: which of them attend
  depends on all steps, later ones as well, and nothing else does.
* With a recurrence (mechanisms/rsa.py) the first heads' (3) is { [1 - g] softmax(..) + g P } V, where
  the rows of P are those of the queries that attend, g = sigmoid(mu). Lags count steps as the layer sees
  them: halved steps behind a halving. With lazy_rem (4) becomes [1 - g] (4) + g P V.
"""

import math
import random

import torch
from torch import Tensor, nn

from ...ops.rem import RecurrenceEncoding, rem
from ...ops.rsa import RSA, SoftmaxAttention
from ...ops.scan import scan
from .informer_config import InformerConfig

# Queries that are measured at once.
BLOCK_ON_A_GPU = 256


def how_many(factor: int, length: int) -> int:
    """min(c ceil(ln L), L): of queries that attend, of keys that are sampled."""
    return min(factor * math.ceil(math.log(length)), length)


def evaluation_generator(seed: int, length: int) -> torch.Generator:
    """On the CPU, from the seed and the length alone."""
    # torch's generator looks at the lower 32 bits of its seed; both numbers must be in them.
    both = random.Random(f"{seed} {length}").getrandbits(32)
    return torch.Generator().manual_seed(both)


@torch.no_grad()
def select_queries(query: Tensor, key: Tensor, sample: Tensor, count: int) -> Tensor:
    """[B, H, count] the queries with the largest measure (2), in no order; sample [T, U] of keys.

    A choice has no gradient. A block of queries is multiplied with all keys and then sampled, which
    takes little memory (on a CPU no more than the scores of those that attend), and less time than
    gathering U keys for each query (on a CPU a tenth of it at 96 steps, a quarter at 336, half at 720).
    For thousands of steps gathering would be faster.
    """
    measures = []
    # A GPU would be idle between so many small products.
    block = max(sample.shape[1], BLOCK_ON_A_GPU if query.is_cuda else 0)
    # Rows and heads as one: a product of four axes would copy all keys for every block.
    queries, keys = query.flatten(0, 1), key.flatten(0, 1)
    for some, drawn in zip(queries.split(block, 1), sample.split(block), strict=True):
        scores = some @ keys.transpose(1, 2)
        scores = scores.gather(2, drawn.expand(len(scores), -1, -1))
        measures.append(scores.amax(2) - scores.sum(2) / key.shape[2])
    measure = torch.cat(measures, 1).unflatten(0, query.shape[:2])
    return measure.topk(count, sorted=False).indices


class ProbSparse(nn.Module):
    """Queries, keys and values [B, H, L, D] of the same steps to [B, H, L, D]."""

    def __init__(self, config: InformerConfig, masked: bool) -> None:
        super().__init__()
        self.config = config
        self.masked = masked
        self.encoding = build_encoding(config, masked) if config.rsa else None
        self.generator: torch.Generator | None = None
        """What samples are drawn from in training; None is torch's own for the device."""

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
        """[L, U] keys for the queries, drawn anew in training.

        In evaluation they follow from the configuration's seed and the length alone: what a window's
        forecast is then depends on no device, and on nothing forecast before it or beside it, but for
        rounding.
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
        """(4); a running sum of many values is not left to half precision."""
        if self.masked:
            precise = torch.promote_types(value.dtype, torch.float32)
            return value.cumsum(2, dtype=precise).to(value.dtype)
        return value.mean(2, keepdim=True).expand_as(value)

    def _mixed(self, attended: Tensor, recurrent: Tensor) -> Tensor:
        """The first heads mixed with what the recurrence gives them, the others as they are."""
        assert self.encoding is not None
        heads = self.encoding.heads
        gate = self.encoding.gate().to(attended.dtype)
        mixed = torch.lerp(attended[:, :heads], recurrent, gate)
        return torch.cat([mixed, attended[:, heads:]], 1)


class FullAttention(nn.Module):
    """Every query reads every key, or every one that is not later; with dropout of the weights."""

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
    """Projections to heads and back around an attention of theirs."""

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
        """[B, T, k] queries of `hidden`; keys and values of the source [B, S, k], else of `hidden`."""
        source = hidden if source is None else source
        read = self.attend(
            self._split(self.query(hidden)),
            self._split(self.key(source)),
            self._split(self.value(source)),
        )
        if self.mix:
            # Steps of head 1, then of head 2, ..., cut into T rows: published, see InformerConfig.mix.
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
    """In full, and without a recurrence: there is no lag between two sequences."""
    return HeadsAttention(config, FullAttention(config, masked=False, recurrent=False))


def build_encoding(config: InformerConfig, masked: bool) -> RecurrenceEncoding:
    return RecurrenceEncoding(
        config.rem_counts,
        config.rem_dilations,
        gate=config.rem_gate,
        masked=masked,
        truncate=config.rem_truncate,
    )
