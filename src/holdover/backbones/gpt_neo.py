"""GPT-Neo: its causal and local masks are a buffer inside `_attn`, not an argument.

The buffer would hide the carried rows from queries beyond the local window, and is too small for a
window of all positions plus the rows. While rows are inserted, `_attn` is ours: the same arithmetic
with the buffer's mask on the tokens and every row in sight.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from .attention import AttentionHook


class GPTNeoAttentionHook(AttentionHook):
    def attach(self) -> list[Any]:
        return [*super().attach(), PatchedAttention(self)]


class PatchedAttention:
    """Instance-level `_attn`; `remove` uncovers the class's own, like a hook's handle."""

    def __init__(self, hook: GPTNeoAttentionHook) -> None:
        self.hook = hook
        hook.attention._attn = self  # type: ignore[assignment]

    def remove(self) -> None:
        del self.hook.attention.__dict__["_attn"]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None):
        module: Any = self.hook.attention
        call = self.hook.hooks.call
        if call is None or call.inputs.rows is None:
            return type(module)._attn(module, query, key, value, attention_mask)
        count = call.inputs.rows.shape[1]
        # Single precision at least, as the stock module computes its scores.
        precision = torch.promote_types(query.dtype, torch.float32)
        scores = query.to(precision) @ key.to(precision).transpose(-1, -2)
        length, keys = query.shape[-2] - count, key.shape[-2] - count
        seen = module.bias[:, :, keys - length : keys, :keys]
        seen = pad(seen, (0, 0, count, 0), value=False)
        seen = pad(seen, (count, 0, 0, 0), value=True)
        scores = torch.where(seen, scores, torch.finfo(scores.dtype).min)
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = module.attn_dropout(nn.functional.softmax(scores, dim=-1).to(value.dtype))
        return weights @ value, weights
