"""A compiled step trains once its gradients are those of the step as it was written.

A compiler's error need not show in the loss. With torch 2.11 a bias that was masked in place, compiled,
had no gradient, and the loss was right: a Transformer-XL trained for 5,000 steps and never learnt to use
its attention (docs/training.md).
"""

from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from ..state import State
from .task import Task

# How much farther than the uncompiled step's from the gradients in float32 those of the compiled one
# may be, and which share of a gradient another order of sums may make of it.
TIMES_ROUNDING = 3.0
SHARE = 0.02
# Gradients smaller than this share of the largest are rounding alone, and nothing is learnt from them.
COUNTS = 1e-4


def check_gradients(model: Any, task: Task, accelerator: Accelerator) -> None:
    """Compare the gradients of the second batch, read behind the first; refuse wrong ones."""
    stream = task.batches(0, 0)
    batches = list(islice(stream, 2))
    getattr(stream, "close", lambda: None)()
    # Without dropout, whose places two ways of drawing would not share.
    model.eval()
    *before, last = batches
    carried = state_behind(model, task, before, accelerator)
    with accelerator.autocast():
        found = gradients(model, task, last, carried)
    with model.uncompiled():
        with accelerator.autocast():
            expected = gradients(model, task, last, carried)
        exact = expected
        if accelerator.mixed_precision != "no":
            # A state that products made is in 16 bits.
            wide = None if carried is None else carried.to(torch.float32)
            exact = gradients(model, task, last, wide)
    model.zero_grad(set_to_none=True)
    largest = max(float(gradient.norm()) for gradient in exact.values())
    for name, gradient in exact.items():
        size = float(gradient.norm())
        if size < COUNTS * largest:
            continue
        rounding = distance(expected[name], gradient)
        away = distance(found[name], gradient)
        if not away <= TIMES_ROUNDING * rounding + SHARE * size:
            raise FloatingPointError(
                f"The compiled step is wrong: the gradient of {name} differs by {away / size:.0%} "
                f"from that in float32, and by {rounding / size:.0%} as the step was written. "
                "Leave --compile out."
            )


@torch.no_grad()
def state_behind(
    model: Any, task: Task, batches: list[Any], accelerator: Accelerator
) -> State | None:
    carried: State | None = None
    for batch in batches:
        with model.uncompiled(), accelerator.autocast():
            _, carried = task.loss(model, batch, carried, max(batch.scored, 1))
    return None if carried is None else carried.detach()


def gradients(model: Any, task: Task, batch: Any, carried: State | None) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss, _ = task.loss(model, batch, carried, max(batch.scored, 1))
    loss.backward()
    # Copies: the next reading may add to the same memory.
    return {
        name: weight.grad.float().clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm())
