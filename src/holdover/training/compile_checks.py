"""A compiled step may train once its gradients are those of the step as written.

A compiler's error need not show in the loss. With torch 2.11 a bias that was masked in place had no
gradient once compiled, while the loss was right: a Transformer-XL trained for 5,000 steps and never
learned to use its attention (docs/training.md).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ..evaluation.cost import uncounted_memory
from ..state import State
from .task import Task

# Both uncompiled and compiled gradients are compared with gradients in float32. The compiled ones may
# be this many times as far away, plus this share of their size for another order of sums.
TIMES_ROUNDING = 3.0
SHARE = 0.02
# Gradients smaller than this share of the largest are only rounding, and teach nothing.
COUNTS = 1e-4
FEW = 16
SEED = 0
# Before gradients are called wrong that rounding may explain: how far weights are moved so that half
# precision rounds them differently, and how often that is tried.
ROUNDED_BY = 2.0**-9
DRAWS = 3
# Early weights say little about an error that grows with the weights: the next check comes after this
# step, and then after ten times as many steps each time.
NEXT_CHECK = 100


class CompileMismatch(ValueError):
    """A compiled or recorded step differs from the step as written, or cannot be made."""


def check_is_due(step: int) -> bool:
    due = NEXT_CHECK
    while due < step:
        due *= 10
    return due == step


def check_gradients(
    model: Any, task: Task, accelerator: Accelerator, *, same_dropout: bool = False
) -> None:
    """Refuse a compiled step whose gradients differ from those of the step as written.

    same_dropout: both draw the same random numbers, so that dropout can stay on.
    """
    comparison = compare_gradients(model, task, accelerator, same_dropout=same_dropout)
    if comparison.wrong:
        worst = max(comparison.wrong, key=lambda one: one.away)
        raise CompileMismatch(
            f"The compiled step is wrong: the gradient of {worst.name} differs by {worst.away:.0%} from "
            f"that in float32, and the uncompiled step's by {worst.rounding:.0%}; "
            f"{len(comparison.wrong)} of {len(comparison.sizes)} gradients are wrong. Leave --compile "
            "out."
        )


def compare_gradients(
    model: Any, task: Task, accelerator: Accelerator, *, same_dropout: bool = False
) -> "GradientComparison":
    """Compare the gradients of the second batch, read after the first."""
    # Imported here: it takes a second, and nobody else needs it.
    from torch._dynamo.exc import TorchDynamoException

    stream = task.batches(0, 0)
    batches = list(islice(stream, 2))
    getattr(stream, "close", lambda: None)()
    *before, last = batches
    half = accelerator.mixed_precision != "no"
    with untouched(model), uncounted_memory(), as_written(model, task):
        # In training mode if the step draws no random numbers, or both draw the same. Another mode
        # would be compiled separately, which takes minutes for a deep model.
        model.train()
        if not same_dropout and is_random(lambda: state_after(model, task, batches, accelerator)):
            model.eval()
        carried = state_after(model, task, before, accelerator)
        if carried is not None:
            # Weights are rounded below: to the model it would be the state of another one.
            carried = replace(carried, owner={})
        # With autocast, matrix products make the state in 16 bits.
        carried32 = None if carried is None or not half else carried.to(torch.float32)

        def as_rounded() -> dict[str, Tensor]:
            with model.uncompiled(), sparing(model), accelerator.autocast():
                return gradients(model, task, last, carried)

        try:
            with accelerator.autocast():
                compiled = gradients(model, task, last, carried)
        except TorchDynamoException as error:
            reason = str(error).strip().partition("\n")[0]
            raise CompileMismatch(
                f"A step of this model cannot be compiled ({reason}): leave --compile out."
            ) from error
        exact = as_rounded()
        rounding = dict.fromkeys(exact, 0.0)
        if half:
            written = exact
            with model.uncompiled(), sparing(model):
                exact = gradients(model, task, last, carried32)
            rounding = distances(written, exact)
        wrong = list(wrong_gradients(compiled, exact, rounding))
        # How far rounding moves a gradient depends on chance, in deep models strongly: one draw does
        # not measure it.
        for draw in range(DRAWS if half else 0):
            if not wrong:
                break
            with rounded_otherwise(model, draw):
                other = distances(as_rounded(), exact)
            rounding = {name: max(far, other[name]) for name, far in rounding.items()}
            wrong = list(wrong_gradients(compiled, exact, rounding))
    sizes = {name: float(gradient.norm()) for name, gradient in exact.items()}
    return GradientComparison(wrong, sizes, distances(compiled, exact), rounding)


class WrongGradient(NamedTuple):
    """A gradient's distance from the exact one as a share of its size, and that of rounding."""

    name: str
    away: float
    rounding: float


class GradientComparison(NamedTuple):
    """For each gradient: the norm of the exact one, and the distance from it of the compiled step's
    gradient and of the uncompiled step's (rounding)."""

    wrong: list[WrongGradient]
    sizes: dict[str, float]
    away: dict[str, float]
    rounding: dict[str, float]


def distances(gradients: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    return {name: float((gradients[name] - exact[name]).norm()) for name in exact}


def wrong_gradients(
    gradients: dict[str, Tensor], exact: dict[str, Tensor], rounding: Mapping[str, float]
) -> Iterator[WrongGradient]:
    """Gradients farther from the exact ones than rounding and another order of sums explain.

    In half precision, gradients of few numbers are not judged. They are sums over the whole batch in
    which much cancels out: by chance they are far off or exact.
    """
    sizes = {name: float(gradient.norm()) for name, gradient in exact.items()}
    least = COUNTS * max(sizes.values())
    for name, away in distances(gradients, exact).items():
        size, far = sizes[name], rounding[name]
        if size < least or (far > 0 and exact[name].numel() < FEW):
            continue
        if not away <= TIMES_ROUNDING * far + SHARE * size:
            yield WrongGradient(name, away / size, far / size)


@torch.no_grad()
def state_after(
    model: Any, task: Task, batches: list[Any], accelerator: Accelerator
) -> State | None:
    carried: State | None = None
    for batch in batches:
        with model.uncompiled(), accelerator.autocast():
            _, carried = task.loss(model, batch, carried, max(batch.scored, 1))
    return None if carried is None else carried.detach()


def is_random(run: Callable[[], Any]) -> bool:
    """Whether a function draws random numbers, as dropout does."""
    before = _random_states()
    run()
    return any(not torch.equal(a, b) for a, b in zip(before, _random_states(), strict=True))


def _random_states() -> list[Tensor]:
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *of_gpus]


def gradients(model: Any, task: Task, batch: Any, carried: State | None) -> dict[str, Tensor]:
    count = max(batch.scored, 1)
    return gradients_of(model, lambda: task.loss(model, batch, carried, count)[0])


def gradients_of(model: Any, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Gradients of a loss by weight name, always with the same random numbers; clears them after."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(SEED)
    try:
        loss().backward()
        # Copies: the next backward may add to the same memory. On the host: the device has little
        # memory left during a run.
        return {
            name: torch.zeros(weight.shape)
            if weight.grad is None
            else weight.grad.to("cpu", torch.float32, copy=True)
            for name, weight in model.named_parameters()
            if weight.requires_grad
        }
    finally:
        # Also when memory runs out: the run continues, and its next step would add to them.
        model.zero_grad(set_to_none=True)


@contextmanager
def as_written(model: Any, task: Any) -> Iterator[None]:
    """Inside, no CUDA graph is replayed, and the caller's autocast decides the precision.

    In a run, accelerate has wrapped the model's forward in an autocast of its own. It has no public
    way to take the wrapper off and put it back, so the attribute is removed and restored here.
    """
    replayed = getattr(task, "replayed", None)
    wrapped = vars(model).pop("forward", None)
    try:
        if replayed is not None:
            task.replayed = None
        yield
    finally:
        if replayed is not None:
            task.replayed = replayed
        if wrapped is not None:
            model.forward = wrapped


@contextmanager
def rounded_otherwise(model: nn.Module, seed: int) -> Iterator[None]:
    """Inside, weights are moved by at most their rounding error in half precision, so that they round
    differently."""
    weights = [weight for weight in model.parameters() if weight.is_floating_point()]
    before = [weight.detach().to("cpu", copy=True) for weight in weights]
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in weights:
            weight.mul_(1 + ROUNDED_BY * (2 * torch.rand_like(weight) - 1))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, original in zip(weights, before, strict=True):
                weight.copy_(original)


@contextmanager
def sparing(model: Any) -> Iterator[None]:
    """Inside, a model that can recompute its windows does so: float32 takes twice the step's memory,
    and a check must not need more memory than training."""
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
    """Restores buffers (running means) and random numbers afterwards, so that a run with a check is
    the same as one without."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
