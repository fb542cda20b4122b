"""What a layer makes of scores and values, as an object of its own: another attention is another of
these in the same model.

forward(query [B, H, T, d], key, value [B, H, K, d], scores, unseen [B, K] or None) gives [B, H, T, d].
The scores by distance are not computed yet: `RelativeSoftmax` reads them as is fastest, and their
`bias()` [B, H, T, K] is added to the scaled scores, -inf wherever a query does not read a key. `unseen`
says which keys hold nothing at all, for what goes around the scores. The last query stands at the last
key: query i is K - T + i - j behind key j.
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
    """The same, mixed with a recurrence over the values in the first heads (RSA-XL)."""

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
                f"rem_counts={tuple(config.rem_counts)} asks for {encoding.heads} heads with a "
                f"recurrence, and n_head={config.n_head}: give fewer of them, or more heads."
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
            f"attention={config.attention!r} is not one that Transformer-XL has; use one of "
            f"{', '.join(map(repr, ATTENTIONS))}."
        )
    return ATTENTIONS[config.attention](config)
