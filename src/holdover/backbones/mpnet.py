"""MPNet: a relative position bias is added to the scores; carried rows have none."""

from typing import Any

from torch.nn.functional import pad

from .attention import AttentionHook


class MPNetAttentionHook(AttentionHook):
    def adjust(self, named: dict[str, Any], count: int) -> None:
        bias = named.get("position_bias")
        if bias is not None:
            named["position_bias"] = pad(bias, (count, 0, count, 0))
