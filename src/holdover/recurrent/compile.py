"""Compiling the step with torch.compile, so that it computes what the uncompiled step computes."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..windows import Window

# Where compiled attention errs: see `misread_when_compiled`.
MISREAD_ON = ("cuda",)


def compiler_options() -> dict[str, Any]:
    """Options of torch's compiler, so that backward reads the numbers that forward computed with.

    Fused operations skip roundings to 16 bits between them, but tensors saved for backward are rounded.
    A softmax's sum then comes from other scores than its gradient; the larger the scores, the larger the
    error, and such gradients grow without bound (docs/training.md). Newer versions of torch round saved
    tensors in both passes; older ones have an option that rounds as the uncompiled step does.
    """
    # Imported here: it takes seconds, and only those who compile need it.
    from torch._inductor import config

    if hasattr(config, "emulate_precision_casts_on_saved_tensors"):
        return {}
    return {"emulate_precision_casts": True}


class CompiledStep:
    """The compiled step and lower layers of one model. A copy of the model starts without them.

    torch.compile is not thread-safe. A form (shapes, dtypes, gradients or not) is compiled under a lock
    when it first comes; forms that are compiled run without one.
    """

    def __init__(self) -> None:
        self.step: Callable[..., Any] | None = None
        self.lower: Callable[..., Any] | None = None
        self._lock = threading.RLock()
        self._forms: set[Any] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "CompiledStep":
        return CompiledStep()

    def compile(self, step: Callable[..., Any], lower: Callable[..., Any], **options: Any) -> None:
        options = {"fullgraph": True, "dynamic": False, **options}
        if "backend" not in options:
            options["options"] = compiler_options()
        # With and without a past, padding and gradients: more forms than torch expects of a function.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 32)
        self.step = torch.compile(step, **options)
        self.lower = torch.compile(lower, **options)
        self._forms = set()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a compiled function; its first call for a form is the only one at a time."""
        leaves, spec = pytree.tree_flatten(arguments)
        form = (id(function), str(spec), torch.is_grad_enabled(), *map(_form_of, leaves))
        if form in self._forms:
            return function(*arguments)
        with self._lock:
            result = function(*arguments)
            self._forms.add(form)
        return result


def _form_of(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_contiguous()
    return type(leaf).__name__ if leaf is None else str(leaf)


def misread_when_compiled(device: torch.device, counts: set[int]) -> bool:
    """Whether attention with a mask errs in compiled code, with this number of keys in some layer.

    Fused kernels take masks whose rows begin at multiples of 8; torch pads others, and the code it
    compiles for a GPU then reads the wrong values. Measured on an H200 with torch 2.11: 300 keys wrong,
    and every other number that is no multiple of 8; 304 and 320 right to the last bit; without a mask
    300 right too.
    """
    return device.type in MISREAD_ON and any(count % 8 for count in counts)


def key_counts(window: Window, carried: Mapping[str, Tensor], extra: int) -> set[int]:
    """How many keys the layers have: tokens and positions around them, or in some carried ones too."""
    tokens = window.input_ids.shape[1] + extra
    if extra:
        return {tokens}
    # [B, m, k]: summaries, or older inputs of a layer; [B, heads, P, d]: keys in the cache.
    older = (tensor.shape[-2] for tensor in carried.values() if tensor.ndim >= 3)
    return {tokens, *(tokens + count for count in older)}


def in_compiled_form(
    window: Window, carried: Mapping[str, Tensor], present: Tensor | None
) -> tuple[Window, dict[str, Tensor], Tensor | None]:
    """A window and its past in one of two forms: nothing missing, or with both masks."""
    mask = window.mask
    if mask is not None or present is not None:
        ids = window.input_ids
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        present = torch.ones_like(ids[:, 0], dtype=torch.bool) if present is None else present
    if torch.is_grad_enabled():
        # As in the windows that follow: a past that was cut off is no other form.
        carried = {
            name: tensor.detach().requires_grad_()
            if tensor.is_floating_point() and not tensor.requires_grad
            else tensor
            for name, tensor in carried.items()
        }
    window = replace(
        window,
        # Copies, so that their strides do not depend on the length of the text.
        input_ids=_contiguous(window.input_ids),
        targets=_contiguous(window.targets),
        token_type_ids=_contiguous(window.token_type_ids),
        mask=_contiguous(mask),
    )
    return window, dict(carried), present


def _contiguous(ids: Any) -> Any:
    return None if ids is None else ids.clone(memory_format=torch.contiguous_format)
