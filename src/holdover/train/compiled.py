"""A compiled step trains once its gradients are those of the step as it was written.

A compiler's error need not show in the loss. With torch 2.11 a bias that was masked in place, compiled,
had no gradient, and the loss was right: a Transformer-XL trained for 5,000 steps and never learnt to use
its attention (docs/training.md).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ..evaluate.cost import uncounted_memory
from ..state import State
from .task import Task

# How much farther than the uncompiled step's from the gradients in float32 those of the compiled one
# may be, and which share of a gradient another order of sums may make of it.
TIMES_ROUNDING = 3.0
SHARE = 0.02
# Gradients smaller than this share of the largest are rounding alone, and nothing is learnt from them.
COUNTS = 1e-4
FEW = 16
SEED = 0


class NotAsWritten(ValueError):
    """A step that was compiled or recorded is not the step as it was written, or cannot be had."""


def check_gradients(
    model: Any, task: Task, accelerator: Accelerator, *, drawn_alike: bool = False
) -> None:
    """Compare the gradients of the second batch, read behind the first; refuse wrong ones.

    With dropout where both ways draw the same numbers; else without, since its places would differ.
    """
    # Imported here: it takes a second, and nobody else needs it.
    from torch._dynamo.exc import TorchDynamoException

    stream = task.batches(0, 0)
    batches = list(islice(stream, 2))
    getattr(stream, "close", lambda: None)()
    model.train(drawn_alike)
    *before, last = batches
    with untouched(model), uncounted_memory():
        carried = state_behind(model, task, before, accelerator)
        try:
            with accelerator.autocast():
                found = gradients(model, task, last, carried)
        except TorchDynamoException as error:
            why = str(error).strip().partition("\n")[0]
            raise NotAsWritten(
                f"A step of this model cannot be compiled ({why}): leave --compile out."
            ) from error
        with model.uncompiled(), sparing(model):
            with accelerator.autocast():
                expected = gradients(model, task, last, carried)
            exact = expected
            if accelerator.mixed_precision != "no":
                # A state that products made is in 16 bits.
                wide = None if carried is None else carried.to(torch.float32)
                exact = gradients(model, task, last, wide)
    if wrong := list(wrong_gradients(found, exact, expected)):
        worst = max(wrong, key=lambda one: one.away)
        raise NotAsWritten(
            f"The compiled step is wrong: the gradient of {worst.name} differs by {worst.away:.0%} from "
            f"that in float32, and by {worst.rounding:.0%} as the step was written; {len(wrong)} of "
            f"{len(found)} gradients are wrong. Leave --compile out."
        )


class Wrong(NamedTuple):
    """A gradient, and how far it is from the exact one, as a share of its size; and so is rounding."""

    name: str
    away: float
    rounding: float


def wrong_gradients(
    found: dict[str, Tensor], exact: dict[str, Tensor], rounded: dict[str, Tensor]
) -> Iterator[Wrong]:
    """Those that are farther from the exact ones than rounding and another order of sums bring them.

    Where half precision rounds, gradients of few numbers are not judged: sums over everything that a
    batch holds, in which much cancels out, and by chance they are off by anything or by nothing.
    """
    sizes = {name: float(gradient.norm()) for name, gradient in exact.items()}
    least = COUNTS * max(sizes.values())
    for name, size in sizes.items():
        rounding = float((rounded[name] - exact[name]).norm())
        if size < least or (rounding > 0 and exact[name].numel() < FEW):
            continue
        away = float((found[name] - exact[name]).norm())
        if not away <= TIMES_ROUNDING * rounding + SHARE * size:
            yield Wrong(name, away / size, rounding / size)


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
    count = max(batch.scored, 1)
    return gradients_of(model, lambda: task.loss(model, batch, carried, count)[0])


def gradients_of(model: Any, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Of a loss, by the weights' names, with the same random numbers every time; none are left."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(SEED)
    loss().backward()
    # Copies: the next reading may add to the same memory.
    found = {
        name: weight.grad.float().clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return found


@contextmanager
def sparing(model: Any) -> Iterator[None]:
    """Inside, a model that can recompute its windows does: float32 takes twice the memory of the step,
    and what is looked at once must not need more than what is done from then on."""
    if not hasattr(model, "recompute"):
        yield
        return
    before, model.recompute = model.recompute, "window"
    try:
        yield
    finally:
        model.recompute = before


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """What reads inside moves no running mean and draws no random number of those behind it, so that a
    run that looked at its gradients is the one that did not."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
