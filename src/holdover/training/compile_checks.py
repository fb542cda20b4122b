"""A compiled step trains once its gradients are those of the step as it was written.

A compiler's error need not show in the loss. With torch 2.11 a bias that was masked in place, compiled,
had no gradient, and the loss was right: a Transformer-XL trained for 5,000 steps and never learnt to use
its attention (docs/training.md).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from ..evaluation.cost import uncounted_memory
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
# How far a weight is moved so that half precision rounds it otherwise, and how often, before gradients
# are called wrong that rounding may explain.
ROUNDED_BY = 2.0**-9
DRAWS = 3
# Weights at the beginning say little about an error that grows with them: another look is taken behind
# this step, and behind ten times as many each time.
NEXT_LOOK = 100


class CompileMismatch(ValueError):
    """A step that was compiled or recorded is not the step as it was written, or cannot be had."""


def look_is_due(step: int) -> bool:
    due = NEXT_LOOK
    while due < step:
        due *= 10
    return due == step


def check_gradients(
    model: Any, task: Task, accelerator: Accelerator, *, drawn_alike: bool = False
) -> None:
    """Compare the gradients of the compiled step with those of the step as it was written; refuse wrong
    ones. `drawn_alike`: both draw the same numbers, so that dropout need not be left out."""
    looked = look_at_gradients(model, task, accelerator, drawn_alike=drawn_alike)
    if looked.wrong:
        worst = max(looked.wrong, key=lambda one: one.away)
        raise CompileMismatch(
            f"The compiled step is wrong: the gradient of {worst.name} differs by {worst.away:.0%} from "
            f"that in float32, and by {worst.rounding:.0%} as the step was written; {len(looked.wrong)} "
            f"of {len(looked.sizes)} gradients are wrong. Leave --compile out."
        )


def look_at_gradients(
    model: Any, task: Task, accelerator: Accelerator, *, drawn_alike: bool = False
) -> "Looked":
    """Of the second batch, read behind the first."""
    # Imported here: it takes a second, and nobody else needs it.
    from torch._dynamo.exc import TorchDynamoException

    stream = task.batches(0, 0)
    batches = list(islice(stream, 2))
    getattr(stream, "close", lambda: None)()
    *before, last = batches
    half = accelerator.mixed_precision != "no"
    with untouched(model), uncounted_memory(), as_written(model, task):
        # As in training, where that draws nothing, or both the same: another mode is another form of the
        # step, and each takes a deep model minutes to compile.
        model.train()
        if not drawn_alike and is_random(lambda: state_behind(model, task, batches, accelerator)):
            model.eval()
        carried = state_behind(model, task, before, accelerator)
        # A state that products made is in 16 bits.
        wide = None if carried is None or not half else carried.to(torch.float32)

        def rounded() -> dict[str, Tensor]:
            with model.uncompiled(), sparing(model), accelerator.autocast():
                return gradients(model, task, last, carried)

        try:
            with accelerator.autocast():
                found = gradients(model, task, last, carried)
        except TorchDynamoException as error:
            why = str(error).strip().partition("\n")[0]
            raise CompileMismatch(
                f"A step of this model cannot be compiled ({why}): leave --compile out."
            ) from error
        exact = rounded()
        rounding = dict.fromkeys(exact, 0.0)
        if half:
            expected = exact
            with model.uncompiled(), sparing(model):
                exact = gradients(model, task, last, wide)
            rounding = distances(expected, exact)
        wrong = list(wrong_gradients(found, exact, rounding))
        # How far rounding brings a gradient is a matter of luck, and of deep models of much luck: one
        # draw of it is no measure.
        for draw in range(DRAWS if half else 0):
            if not wrong:
                break
            with rounded_otherwise(model, draw):
                other = distances(rounded(), exact)
            rounding = {name: max(far, other[name]) for name, far in rounding.items()}
            wrong = list(wrong_gradients(found, exact, rounding))
    sizes = {name: float(gradient.norm()) for name, gradient in exact.items()}
    return Looked(wrong, sizes, distances(found, exact), rounding)


class Wrong(NamedTuple):
    """A gradient, and how far it is from the exact one, as a share of its size; and so is rounding."""

    name: str
    away: float
    rounding: float


class Looked(NamedTuple):
    """By gradient: how large the exact one is, how far from it the compiled step's is, and how far
    rounding brings the step as it was written."""

    wrong: list[Wrong]
    sizes: dict[str, float]
    away: dict[str, float]
    rounding: dict[str, float]


def distances(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    return {name: float((found[name] - exact[name]).norm()) for name in exact}


def wrong_gradients(
    found: dict[str, Tensor], exact: dict[str, Tensor], rounding: Mapping[str, float]
) -> Iterator[Wrong]:
    """Those that are farther from the exact ones than rounding and another order of sums bring them.

    Where half precision rounds, gradients of few numbers are not judged: sums over everything that a
    batch holds, in which much cancels out, and by chance they are off by anything or by nothing.
    """
    sizes = {name: float(gradient.norm()) for name, gradient in exact.items()}
    least = COUNTS * max(sizes.values())
    for name, away in distances(found, exact).items():
        size, far = sizes[name], rounding[name]
        if size < least or (far > 0 and exact[name].numel() < FEW):
            continue
        if not away <= TIMES_ROUNDING * far + SHARE * size:
            yield Wrong(name, away / size, far / size)


@torch.no_grad()
def state_behind(
    model: Any, task: Task, batches: list[Any], accelerator: Accelerator
) -> State | None:
    carried: State | None = None
    for batch in batches:
        with model.uncompiled(), accelerator.autocast():
            _, carried = task.loss(model, batch, carried, max(batch.scored, 1))
    return None if carried is None else carried.detach()


def is_random(run: Callable[[], Any]) -> bool:
    """Whether something takes random numbers, as dropout does."""
    begin = _random_states()
    run()
    return any(not torch.equal(a, b) for a, b in zip(begin, _random_states(), strict=True))


def _random_states() -> list[Tensor]:
    of_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *of_gpus]


def gradients(model: Any, task: Task, batch: Any, carried: State | None) -> dict[str, Tensor]:
    count = max(batch.scored, 1)
    return gradients_of(model, lambda: task.loss(model, batch, carried, count)[0])


def gradients_of(model: Any, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Of a loss, by the weights' names, with the same random numbers every time; none are left."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(SEED)
    try:
        loss().backward()
        # Copies: the next reading may add to the same memory. On the host: a run leaves little room.
        return {
            name: torch.zeros(weight.shape)
            if weight.grad is None
            else weight.grad.to("cpu", torch.float32, copy=True)
            for name, weight in model.named_parameters()
            if weight.requires_grad
        }
    finally:
        # Also where memory ran out on the way: a run goes on, and its next step would add to them.
        model.zero_grad(set_to_none=True)


@contextmanager
def as_written(model: Any, task: Any) -> Iterator[None]:
    """Inside, a step is not replayed, and reads in the precision that is around it: a run that has begun
    puts its own around the model's forward."""
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
    """Inside, weights are moved by no more than half precision rounds them: it rounds otherwise."""
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
            for weight, its in zip(weights, before, strict=True):
                weight.copy_(its)


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
