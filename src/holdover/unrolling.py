"""The one loop over windows: training, evaluation and generation all run it.

* `horizon`: truncated back-propagation through time. The state is cut before windows h, 2h, ...
* `recompute`: a window's activations are kept for its backward, or computed again in it. Recomputed
  windows leave nothing behind but their state, so memory does not grow with the length.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from .state import State

Output = TypeVar("Output")
# Of the memory that is free, what recompute="auto" may fill with activations.
BUDGET_SHARE = 0.7


class HasBegins(Protocol):
    @property
    def begins(self) -> Tensor | None: ...


WindowLike = TypeVar("WindowLike", bound=HasBegins)
Step = Callable[[WindowLike, State | None], tuple[Output, State]]


@dataclass(frozen=True)
class Recompute:
    """When to compute a window again instead of keeping its activations."""

    mode: Literal["none", "window", "auto"] = "none"
    budget: int | None = None  # bytes for auto; none takes a share of what is free
    random: bool = True  # the step draws random numbers (dropout), to be drawn again alike
    parameters: tuple[Tensor, ...] = ()  # what autograd keeps but is no activation, for auto
    step: Step | None = None  # for windows that are computed twice, where another is cheaper


def unroll(
    step: Step,
    windows: Iterable[Any],
    state: State | None = None,
    *,
    horizon: int | None = None,
    recompute: Recompute = Recompute(),
) -> Iterator[tuple[Any, State]]:
    """Run `step(window, state) -> (output, state)` over the windows, yielding after each."""
    # How many windows keep their activations; for auto it is known after the first.
    kept = float("inf")
    if torch.is_grad_enabled() and recompute.mode != "none":
        kept = 0 if recompute.mode == "window" else 1
    measure = recompute.mode == "auto" and torch.is_grad_enabled()
    for number, window in enumerate(windows):
        if state is not None:
            if horizon is not None and number > 0 and number % horizon == 0:
                state = state.detach()
            if window.begins is not None:
                state = state.reset(window.begins)
        if number >= kept:
            output, state = checkpoint(
                recompute.step or step,
                window,
                state,
                use_reentrant=False,
                preserve_rng_state=recompute.random,
            )
        elif measure and number == 0:
            with ActivationMeter(recompute.parameters) as meter:
                output, state = step(window, state)
            budget = recompute.budget
            if budget is None:
                budget = meter.bytes + free_memory(state.device)
            kept = max(1, budget // max(meter.bytes, 1))
        else:
            output, state = step(window, state)
        assert state is not None
        yield output, state


class ActivationMeter:
    """Bytes that autograd keeps of what runs inside `with`, parameters left out."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._seen = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self.bytes = 0
        self._hooks = saved_tensors_hooks(self._count, lambda tensor: tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        # Detached: a saved output that held its own node would never be freed.
        return tensor.detach()

    def __enter__(self) -> "ActivationMeter":
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._hooks.__exit__(*exception)


def free_memory(device: torch.device | None) -> int:
    """Bytes that activations may take on a device now."""
    if device is not None and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(BUDGET_SHARE * (free + cached))
    import psutil

    return int(BUDGET_SHARE * psutil.virtual_memory().available)
