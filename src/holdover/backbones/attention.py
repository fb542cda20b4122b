"""The hooks at an attention module: carried rows become keys and values of one layer.

* The rows are put in front of the module's input, through the layer's own norm, and their outputs are
  dropped: they are projected like tokens (key norms, grouped heads, LoRA and all) and never query.
* Unpadded causal attention stays a square problem without a mask, on the fused path.
* Rotary models: the rows are not rotated, which is position 0 for every query.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

CACHE_ARGUMENTS = ("past_key_values", "layer_past")


def argument_names(module: nn.Module) -> tuple[str, ...]:
    """Names of the positional parameters of a module's forward."""
    parameters = inspect.signature(type(module).forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in positional)[1:]


def by_name(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """All arguments of a call under their names."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def with_changes(
    names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], changes: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with some arguments changed, positional ones staying positional: hooks of
    transformers itself look for them there."""
    placed = tuple(changes.pop(name, arg) for name, arg in zip(names, args, strict=False))
    return placed, {**kwargs, **changes}


class AttentionHook:
    """Puts the carried rows in front of one attention module's input."""

    def __init__(self, hooks: Any, layer: nn.Module, attention: nn.Module, norm: nn.Module | None):
        self.hooks = hooks
        self.layer = layer
        self.attention = attention
        self.norm = norm
        self.names = argument_names(attention)

    def attach(self) -> list[Any]:
        """Register the hooks; their handles undo it."""
        return [
            self.attention.register_forward_pre_hook(BeforeAttention(self), with_kwargs=True),
            self.attention.register_forward_hook(AfterAttention(self)),
        ]

    def rows(self) -> Tensor | None:
        """[B, E, k] rows to insert now, as the attention module takes them."""
        call = self.hooks.call
        if call is None or call.inputs.rows is None:
            return None
        return call.inputs.rows if self.norm is None else self.norm(call.inputs.rows)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The call's arguments with the rows in front; None leaves the call as it is."""
        rows = self.rows()
        if rows is None:
            return None
        named = by_name(self.names, args, kwargs)
        hidden = named["hidden_states"]
        rows = rows.to(hidden.dtype)
        count = rows.shape[1]
        call = self.hooks.call
        named["hidden_states"] = torch.cat([rows, hidden], 1)
        named["attention_mask"] = extend_mask(
            named.get("attention_mask"),
            count,
            call.inputs.visible,
            hidden,
            causal=self.hooks.spec.causal,
            past=call.past,
        )
        if named.get("position_embeddings") is not None:
            named["position_embeddings"] = unrotated(named["position_embeddings"], count)
        for name in CACHE_ARGUMENTS:
            if named.get(name) is not None:
                named[name] = CacheWithoutRows(named[name], count, call.keeps_row_keys)
        self.adjust(named, count)
        return named

    def adjust(self, named: dict[str, Any], count: int) -> None:
        """For adapters: what else an architecture's attention is given."""

    def strip(self, output: Any) -> Any:
        """The module's output without the rows'."""
        call = self.hooks.call
        if call is None or call.inputs.rows is None:
            return output
        count = call.inputs.rows.shape[1]
        return (output[0][:, count:], *output[1:])


class CacheWithoutRows:
    """A key-value cache for one call that never holds the carried rows.

    What is cached, cropped or reordered stays stock; the rows are put in front of what it returns.
    """

    def __init__(self, cache: Any, count: int, keeps_row_keys: bool = False) -> None:
        self.cache = cache
        self.count = count
        self.keeps_row_keys = keeps_row_keys

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        count = self.count
        stock = self.cache.update(
            keys[:, :, count:], values[:, :, count:], layer_idx, *args, **kwargs
        )
        if self.keeps_row_keys:
            # Copies: views would keep the tokens that were projected with them alive.
            rows = keys[:, :, :count].clone(), values[:, :, :count].clone()
            self.cache.layers[layer_idx].rows = rows
        return (
            torch.cat([keys[:, :, :count], stock[0]], 2),
            torch.cat([values[:, :, :count], stock[1]], 2),
        )


class BeforeAttention:
    """Forward pre-hook. An object, not a closure: a deep copy of a model gets its own."""

    def __init__(self, hook: AttentionHook) -> None:
        self.hook = hook

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        named = self.hook.arguments(args, kwargs)
        return None if named is None else ((), named)


class AfterAttention:
    """Forward hook."""

    def __init__(self, hook: AttentionHook) -> None:
        self.hook = hook

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any):
        return self.hook.strip(output)


def unrotated(embeddings: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Rotary cosines and sines [B, T, d] with `count` un-rotated positions in front.

    Their length is the model's rotary scale at any angle, which is the cosine at angle zero.
    """
    cosines, sines = embeddings
    scale = torch.hypot(cosines[:, :1], sines[:, :1])
    return (
        torch.cat([scale.expand(-1, count, -1), cosines], 1),
        torch.cat([torch.zeros_like(scale).expand(-1, count, -1), sines], 1),
    )


def extend_mask(
    mask: Tensor | None,
    count: int,
    visible: Tensor | None,
    hidden: Tensor,
    causal: bool,
    past: int = 0,
) -> Tensor | None:
    """A mask [B or 1, heads or 1, T, past + T] with `count` rows and columns in front.

    Every query sees the columns, except in rows of the batch without a past. The rows in front
    are queries whose output is dropped; they see the columns, so that no softmax is empty.
    """
    if mask is None and visible is None and past == 0:
        return None
    if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 4):
        raise ValueError(
            "holdover inserts its state into attention masks of four dimensions; this model uses "
            f"{type(mask).__name__}: call model.set_attn_implementation('sdpa') first."
        )
    length = hidden.shape[1]
    if mask is None:
        # Additive, because eager attention would add a boolean mask as zeros and ones.
        mask = hidden.new_zeros(1, 1, length, past + length)
        if causal:
            future = torch.ones_like(mask, dtype=torch.bool).triu(past + 1)
            mask = mask.masked_fill(future, torch.finfo(hidden.dtype).min)
    see, hide = (True, False) if mask.dtype == torch.bool else (0.0, torch.finfo(mask.dtype).min)
    mask = pad(mask, (0, 0, count, 0), value=hide)
    columns = torch.full_like(mask[..., :1], see)
    if visible is not None:
        columns = columns.expand(visible.shape[0], -1, -1, -1).clone()
        unseen = ~visible[:, None, None, None].expand_as(columns).clone()
        unseen[:, :, :count] = False
        columns = columns.masked_fill(unseen, hide)
        mask = mask.expand(visible.shape[0], -1, -1, -1)
    return torch.cat([columns.expand(-1, -1, -1, count), mask], -1)
