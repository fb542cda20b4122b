"""Segments of a text, recorded once as a CUDA graph and replayed (training/replay.py).

A segment is the windows of one step; its form is everything but the values of its tensors. A record can
replay all segments of one form.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..recurrent.reading import tail_after
from ..state import State
from ..training.replay import check_replayed, record_call
from ..windows import Window


@dataclass(frozen=True)
class Form:
    """The structure, shapes and types that all segments of one record share."""

    spec: Any
    kinds: tuple[tuple[torch.Size, torch.dtype] | None, ...]  # for each leaf; None: no tensor

    def assemble(self, tensors: Iterable[Tensor]) -> tuple[list[Window], State]:
        given = iter(tensors)
        leaves = [None if kind is None else next(given) for kind in self.kinds]
        return pytree.tree_unflatten(leaves, self.spec)


def form_of(windows: Sequence[Window], state: State | None) -> tuple[Form, list[Tensor]]:
    """A segment's form, and its tensors."""
    sorted_state = None
    if state is not None:
        # Sorted: a state from a file has another order than one from a model. The tail is no input of
        # windows that are cut already.
        sorted_tensors = dict(sorted(state.tensors.items()))
        sorted_state = replace(state, owner={}, tail=None, tensors=sorted_tensors)
    leaves, spec = pytree.tree_flatten((list(windows), sorted_state))
    kinds = tuple(None if leaf is None else (leaf.shape, leaf.dtype) for leaf in leaves)
    return Form(spec, kinds), [leaf for leaf in leaves if leaf is not None]


class _Segment(nn.Module):
    """Maps the tensors of windows and their state to the loss and the next state's tensors."""

    def __init__(self, model: Any, form: Form) -> None:
        super().__init__()
        self.model = model
        self.form = form
        self.next_state: Form | None = None

    def forward(self, count: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        windows, state = self.form.assemble(tensors)
        # Some models make a matrix on the host and copy it (XLNet, transformers 5.17), which cannot be
        # recorded. So new tensors go to this device by default. Not in compiled steps: a default device
        # makes them compile anew, and Transformer-XL's failed at it (torch 2.11).
        with nullcontext() if self.model.compiled else count.device:
            output = self.model(windows=windows, state=state, num_items_in_batch=count)
        self.next_state, tensors_after = form_of([], output.state.detach())
        return (output.loss, *tensors_after)


class ReplayedSegments:
    """Losses and states of segments in training: replayed if their form was recorded.

    The first form is that of segments inside documents, in which nothing is masked. With `ends` there
    is a second record for segments in which documents end or begin: all their masks are tensors.

    Both records work in the same memory. A segment is read forward and backward before the next one
    begins, and each record has its own place for the results (loss, state, gradients).
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
            self.calls[form] = record_call(segment, (count, *tensors), pool), segment
        # After the last recording, which may have written to the memory of an earlier one.
        for given in forms:
            self._check(*given)

    def __call__(
        self, windows: Sequence[Window], state: State | None, count: int
    ) -> tuple[Tensor, State]:
        """The summed loss divided by count, and the detached state after the windows."""
        if not self.model.training:
            return self.as_written(windows, state, count)
        given = windows, state
        form, tensors = form_of(*given)
        if form not in self.calls:
            form, tensors = form_of(*self._masked(*given))
        if form not in self.calls:
            return self.as_written(windows, state, count)
        call, segment = self.calls[form]
        # A tensor: a Python number would stay the recorded one forever.
        divisor = torch.full((), count, device=tensors[0].device, dtype=torch.float32)
        loss, *tensors_after = call(divisor, *tensors)
        assert segment.next_state is not None
        # Copies: the next replay overwrites this one's state.
        copies = [tensor.detach().clone() for tensor in tensors_after]
        _, state_after = segment.next_state.assemble(copies)
        before = None if state is None else state.tail
        tail = tail_after(list(windows), before, self.model.settings.overlap)
        return loss, replace(state_after, tail=tail, owner=self.model.owner())

    def _masked(self, windows: Sequence[Window], state: State | None) -> tuple[list[Window], State]:
        """The same segment with all optional masks as tensors."""
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
        check_replayed(self.model, lambda: self(*given)[0], lambda: self.as_written(*given)[0])
