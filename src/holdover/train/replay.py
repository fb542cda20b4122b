"""A step recorded once and replayed: a CUDA graph of its forward and backward.

A step of a small model is hundreds of small kernels. They take a GPU a few milliseconds, and Python
several times as long to start one by one. Replayed, they are the same kernels on the same memory.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..backbones import nobody_looks
from ..evaluate.cost import uncounted_memory
from ..series import ForecastBatch
from ..state import State
from ..windows import Window
from .compiled import NotAsWritten, distances, gradients_of, untouched, wrong_gradients

Forecast = Callable[[Tensor, Tensor, Tensor], Tensor]


def check_replay(options: Any, device: torch.device, processes: int) -> None:
    """Refuse to replay what cannot be recorded.

    Gradients of several batches would be added up in memory that a replay writes over; those of several
    processes are added up by hooks, which a replay does not call; and a window that is computed again
    asks for the state of random numbers, which is not to be had while recording.
    """
    for name, found, needed in (
        ("device", device.type, "cuda"),
        ("accumulate", options.accumulate, 1),
        ("processes", processes, 1),
        ("recompute", options.recurrence.recompute, "none"),
    ):
        if options.replay and found != needed:
            raise ValueError(
                f"replay does not go with {name}={found}: give {name}={needed}, or leave --replay out."
            )


class _Forecasting(nn.Module):
    """`forecast` as the call of a module: of a module's call torch records the gradients of weights."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: Tensor, marks: Tensor, future_marks: Tensor) -> Tensor:
        return self.model.forecast(values, marks, future_marks)


def record(model: Any, batch: ForecastBatch) -> Forecast:
    """What forecasts batches of this one's shape, in training."""
    given = batch.values, batch.marks, batch.future_marks
    replayed = _recorded(_Forecasting(model), given)

    def loss(forecast: Forecast) -> Tensor:
        return (forecast(*given).float() - batch.future).square().mean()

    _check(model, lambda: loss(replayed), lambda: loss(model.forecast))
    return replayed


@dataclass(frozen=True)
class Form:
    """What segments must have in common for one record."""

    spec: Any
    kinds: tuple[tuple[torch.Size, torch.dtype] | None, ...]  # of each leaf; None: it is left out

    def put_together(self, tensors: Iterable[Tensor]) -> tuple[list[Window], State]:
        given = iter(tensors)
        leaves = [None if kind is None else next(given) for kind in self.kinds]
        return pytree.tree_unflatten(leaves, self.spec)


def form_of(windows: Sequence[Window], state: State | None) -> tuple[Form, list[Tensor]]:
    """A segment's form, and the tensors in which it differs from others of that form."""
    known = None
    if state is not None:
        # In one order: a file's is another than a model's.
        known = replace(state, owner={}, tensors=dict(sorted(state.tensors.items())))
    leaves, spec = pytree.tree_flatten((list(windows), known))
    kinds = tuple(None if leaf is None else (leaf.shape, leaf.dtype) for leaf in leaves)
    return Form(spec, kinds), [leaf for leaf in leaves if leaf is not None]


class _Segment(nn.Module):
    """Windows and the state in front of them as tensors alone; gives their loss and the next state's."""

    def __init__(self, model: Any, form: Form) -> None:
        super().__init__()
        self.model = model
        self.form = form
        self.behind: Form | None = None

    def forward(self, count: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        windows, state = self.form.put_together(tensors)
        # Some models make a matrix on the host and send it (XLNet, transformers 5.17), which a record
        # cannot hold: here what says no device is made on this one. Not for compiled steps: to them a
        # device is one more thing to compile for, and Transformer-XL's failed at it (torch 2.11).
        with nullcontext() if self.model.compiled else count.device:
            output = self.model(windows=windows, state=state, num_items_in_batch=count)
        self.behind, found = form_of([], output.state.detach())
        return (output.loss, *found)


class ReplayedSegments:
    """Losses and states of segments in training: replayed, where they have a recorded form.

    One form is that of segments inside documents, in which nothing is masked. With `ends` there is a
    second record, for segments in which documents end or begin: all their masks are written out.

    Both work in the same memory: a segment is read forward and backward before the next one is begun,
    and what is kept of it (loss, state, gradients) has a place of its own in either record.
    """

    def __init__(
        self, model: Any, windows: Sequence[Window], state: State, *, ends: bool = False
    ) -> None:
        self.model = model
        nothing = {name: torch.zeros_like(tensor) for name, tensor in state.tensors.items()}
        self.empty = State(nothing, torch.zeros_like(state.presence()))
        self.calls: dict[Form, tuple[Any, _Segment]] = {}
        pool = torch.cuda.graph_pool_handle()
        forms = [(windows, state), *([self._masked(windows, state)] if ends else [])]
        for given in forms:
            form, tensors = form_of(*given)
            segment = _Segment(model, form)
            count = torch.ones((), device=tensors[0].device)
            self.calls[form] = _recorded(segment, (count, *tensors), pool), segment
        # Behind the last recording, which may have written where an earlier one works.
        for given in forms:
            self._check(*given)

    def __call__(
        self, windows: Sequence[Window], state: State | None, count: int
    ) -> tuple[Tensor, State]:
        """The summed loss divided by count, and the state behind the windows without its history."""
        if not self.model.training:
            return self.as_written(windows, state, count)
        given = windows, state
        form, tensors = form_of(*given)
        if form not in self.calls:
            form, tensors = form_of(*self._masked(*given))
        if form not in self.calls:
            return self.as_written(windows, state, count)
        call, segment = self.calls[form]
        # A number would be the recorded one for ever.
        divided_by = torch.full((), count, device=tensors[0].device, dtype=torch.float32)
        loss, *found = call(divided_by, *tensors)
        assert segment.behind is not None
        # Copies: the next replay writes where this one's state lies.
        _, behind = segment.behind.put_together([tensor.detach().clone() for tensor in found])
        return loss, replace(behind, owner=self.model.owner())

    def _masked(self, windows: Sequence[Window], state: State | None) -> tuple[list[Window], State]:
        """The same with everything that is left out where nothing is masked."""
        full = [
            replace(
                window,
                mask=torch.ones_like(window.input_ids, dtype=torch.bool)
                if window.mask is None
                else window.mask,
                begins=torch.zeros_like(window.input_ids[:, 0], dtype=torch.bool)
                if window.begins is None
                else window.begins,
            )
            for window in windows
        ]
        if state is None:
            return full, self.empty
        return full, replace(state, present=state.presence())

    def as_written(
        self, windows: Sequence[Window], state: State | None, count: int
    ) -> tuple[Tensor, State]:
        output = self.model(windows=windows, state=state, num_items_in_batch=count)
        return output.loss, output.state.detach()

    def _check(self, windows: Sequence[Window], state: State) -> None:
        count = sum(window.input_ids.numel() for window in windows)
        given = windows, state, count
        _check(self.model, lambda: self(*given)[0], lambda: self.as_written(*given)[0])


def _check(model: Any, replayed: Callable[[], Tensor], written: Callable[[], Tensor]) -> None:
    """Compare the gradients of a recorded loss, replayed, with those as it was written.

    Written and read twice they differ too, where kernels add up in the order in which threads arrive:
    as rounding, that much is no error of the record.
    """
    with untouched(model), uncounted_memory():
        found, expected, again = (
            gradients_of(model.train(), loss) for loss in (replayed, written, written)
        )
    for wrong in wrong_gradients(found, expected, distances(again, expected)):
        raise NotAsWritten(
            f"The replayed step is wrong: the gradient of {wrong.name} differs by {wrong.away:.0%} "
            "from that of the step as it was written. Give --no-replay."
        )


def _recorded(module: nn.Module, given: tuple[Tensor, ...], pool: Any = None) -> Any:
    """A module's call in training, for tensors of these shapes; in memory that others may have too."""
    held = tuple(value.clone() for value in given)
    # A record's gradients arrive on the stream it was recorded on, and torch waits for them.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    # Recording calls it some times before.
    with untouched(module), nobody_looks():
        try:
            # Not every weight has a part in every step (InformerConfig.mix).
            return torch.cuda.make_graphed_callables(
                module.train(), held, allow_unused_input=True, pool=pool
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise NotAsWritten(
                f"A step of this model cannot be recorded ({why}): give --no-replay."
            ) from error
