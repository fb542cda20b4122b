"""The attention of a layer as an exchangeable module: softmax, or softmax mixed with a recurrence (RSA).

forward(query [B, H, T, d], key, value [B, H, K, d], scores, unseen [B, K] or None) gives [B, H, T, d].
The scores by distance are not computed yet: `RelativeSoftmax` computes them in the fastest way. Their
`bias()` [B, H, T, K] adds to the scaled scores, and is -inf where a query does not read a key. `unseen`
marks keys without content, for modules that do not go through the scores. The last query is at the
position of the last key, so the distance from query i to key j is K - T + i - j.
"""

from collections.abc import Callable

from torch import Tensor, nn

from ..ops.relative_softmax import PositionScores, RelativeSoftmax
from ..ops.rem import RecurrenceEncoding
from ..ops.rsa import RSA
from .transformer_xl_config import TransformerXLConfig


class SoftmaxAttend(nn.Module):
    """softmax(q k / sqrt(d) + scores by distance) v, in one fused call."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.dropout = config.dropatt

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scores: PositionScores,
        unseen: Tensor | None,
    ) -> Tensor:
        return RelativeSoftmax(scores, self.dropout if self.training else 0.0)(query, key, value)


class RSAAttend(nn.Module):
    """Softmax attention mixed with a recurrence over the values in the first heads (RSA-XL)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        encoding = RecurrenceEncoding(
            config.rem_counts,
            config.rem_dilations,
            gate=config.rem_gate,
            truncate=config.rem_truncate,
        )
        if encoding.heads > config.n_head:
            raise ValueError(
                f"rem_counts={tuple(config.rem_counts)} needs {encoding.heads} heads with a recurrence, "
                f"but n_head={config.n_head}: give smaller counts or more heads."
            )
        self.rsa = RSA(encoding)
        self.dropout = config.dropatt

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scores: PositionScores,
        unseen: Tensor | None,
    ) -> Tensor:
        attention = RelativeSoftmax(scores, self.dropout if self.training else 0.0)
        present = None if unseen is None else ~unseen
        return self.rsa(query, key, value, attention, present)


ATTENTIONS: dict[str, Callable[[TransformerXLConfig], nn.Module]] = {
    "relative": SoftmaxAttend,
    "rsa": RSAAttend,
}


def build_attend(config: TransformerXLConfig) -> nn.Module:
    if config.attention not in ATTENTIONS:
        raise ValueError(
            f"attention={config.attention!r} is unknown for Transformer-XL; use one of "
            f"{', '.join(map(repr, ATTENTIONS))}."
        )
    return ATTENTIONS[config.attention](config)
