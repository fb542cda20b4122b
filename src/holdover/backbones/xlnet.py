"""XLNet: sequence-first tensors, relative positions, two streams, and a memory of its own.

* Carried rows are put into one layer's `mems`: keys and values without a query, as stock XLNet reads
  its memory. Positions, masks and segments of that layer are extended to match.
* Scores by distance become scores by key in a slice, where stock XLNet selects them by index: the same
  numbers, but the gradient of a selection is added up index by index, which is slow.
* With its language-modelling head a window is read left to right: the query stream at position i + 1
  predicts the token after position i, from the tokens up to i. The state is made of the content stream.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .attention import AttentionHook
from .hooks import Hooks
from .window_call import WindowCall


def _masks_of(named: dict[str, Any]) -> list[str]:
    return (
        ["attn_mask_h"]
        if named.get("output_g", named.get("g")) is None
        else ["attn_mask_h", "attn_mask_g"]
    )


class XLNetAttentionHook(AttentionHook):
    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        rows = self.rows()
        if rows is None:
            return None
        named = dict(zip(self.names, args, strict=False)) | kwargs
        content = named["h"]
        rows = rows.to(content.dtype).transpose(0, 1)
        count, length = rows.shape[0], content.shape[0]
        named["mems"] = rows
        base = self.hooks.base
        longer = base.relative_positional_encoding(
            length, length + count, bsz=content.shape[1], device=content.device
        )
        named["r"] = torch.cat([longer[:count].to(named["r"].dtype), named["r"]], 0)
        visible = self.hooks.call.inputs.visible
        for name in _masks_of(named):
            named[name] = hide_columns(named.get(name), count, visible, content)
        if named.get("seg_mat") is not None:
            same_segment = (
                torch.zeros_like(named["seg_mat"][:, :1]).expand(-1, count, -1, -1).clone()
            )
            same_segment[..., 0] = 1
            named["seg_mat"] = torch.cat([same_segment, named["seg_mat"]], 1)
        return named

    def strip(self, output: Any) -> Any:
        return output


def hide_columns(
    mask: Tensor | None, count: int, visible: Tensor | None, content: Tensor
) -> Tensor | None:
    """A mask [T, T, B or 1, 1] (1 hides) with `count` columns in front; hidden where not visible."""
    if mask is None and visible is None:
        return None
    length, batch = content.shape[:2]
    if mask is None:
        mask = content.new_zeros(length, length, 1, 1)
    if visible is None:
        return pad(mask, (0, 0, 0, 0, count, 0))
    hidden = (~visible).to(mask.dtype).reshape(1, 1, batch, 1).expand(length, count, batch, 1)
    return torch.cat([hidden, mask.expand(-1, -1, batch, -1)], 1)


def scores_by_key(scores: Tensor, klen: int) -> Tensor:
    """[B, H, T, R] by distance -> [B, H, T, klen] by key: each query's begin one place after the last
    one's, which are all of them without the first T, in rows that are one shorter."""
    queries, distances = scores.shape[2:]
    moved = scores.flatten(2)[..., queries:].unflatten(2, (queries, distances - 1))
    return moved[..., :klen]


class SlicedScores:
    """Stands for that at one attention module; removed like a hook."""

    def __init__(self, attention: Any) -> None:
        self.attention = attention
        attention.rel_shift_bnij = scores_by_key

    def remove(self) -> None:
        del self.attention.rel_shift_bnij


class XLNetHooks(Hooks):
    def attach(self) -> None:
        super().attach()
        attentions = [layer.get_submodule(self.spec.attention) for layer in self.layers]
        self._handles += [SlicedScores(attention) for attention in attentions]

    def before_base(self, call: WindowCall, named: dict[str, Any]) -> dict[str, Any]:
        named = super().before_base(call, named)
        if call.inputs.memory is not None:
            named["mems"] = [memory.transpose(0, 1) for memory in call.inputs.memory]
        if self.reads_left_to_right:
            _read_left_to_right(named)
        named["use_mems"] = False
        return named

    def before_layer(self, call: WindowCall, index: int, named: dict[str, Any]) -> dict[str, Any]:
        changes = super().before_layer(call, index, named)
        reading = call.inputs
        if reading.memory is not None and reading.filled is not None:
            length = reading.memory[0].shape[1]
            place = torch.arange(length, device=reading.filled.device)
            missing = place[None, :, None, None] < (length - reading.filled)[None, None, :, None]
            content = named["output_h"]
            for name in _masks_of(named):
                changes[name] = _hide(named.get(name), missing, content)
        return changes

    def layer_input(self, named: dict[str, Any]) -> Tensor:
        return self._tokens(named["output_h"])

    def layer_output(self, output: Any) -> Tensor:
        return self._tokens(output[0])

    def final_hidden(self, call: WindowCall, output: Any) -> Tensor:
        assert call.last_layer is not None
        return call.last_layer

    def hidden_states(self, output: Any) -> tuple[Tensor, ...]:
        if not self.reads_left_to_right:
            return output.hidden_states
        # Content and query streams alternate.
        return tuple(hidden[:, :-1] for hidden in output.hidden_states[::2])

    def pass_through(self, named: dict[str, Any], stored: Tensor | None) -> Any:
        content = named["output_h"] if stored is None else stored.transpose(0, 1)
        return content, named.get("output_g")

    def _tokens(self, content: Tensor) -> Tensor:
        """[T (+ 1), B, k] -> [B, T, k]: without the position that only asks for the next token."""
        hidden = content.transpose(0, 1)
        return hidden[:, :-1] if self.reads_left_to_right else hidden


def _hide(mask: Tensor | None, missing: Tensor, content: Tensor) -> Tensor:
    """A mask [T, M + T, B or 1, 1] with those of the M older positions hidden that hold nothing."""
    length, batch = content.shape[:2]
    older = missing.shape[1]
    if mask is None:
        mask = content.new_zeros(length, older + length, 1, 1)
    hidden = pad(missing.to(mask.dtype), (0, 0, 0, 0, 0, mask.shape[1] - older))
    return torch.maximum(mask.expand(-1, -1, batch, -1), hidden)


def _read_left_to_right(named: dict[str, Any]) -> None:
    """Append one position, and let each see what stands before it."""
    key = "input_ids" if named.get("input_ids") is not None else "inputs_embeds"
    values = named[key]
    batch, length = values.shape[:2]
    named[key] = torch.cat([values, torch.zeros_like(values[:, :1])], 1)
    for name, extra in (("attention_mask", 1), ("token_type_ids", 0)):
        if named.get(name) is not None:
            named[name] = pad(named[name], (0, 1), value=extra)
    kind = {"device": values.device, "dtype": torch.float}
    # 1 hides: from position i everything from i on; the content stream still sees itself.
    named["perm_mask"] = torch.ones(length + 1, length + 1, **kind).triu().expand(batch, -1, -1)
    named["target_mapping"] = torch.eye(length + 1, **kind)[1:].expand(batch, -1, -1)
