"""Segments of a text, recorded once as a CUDA graph and replayed (training/replay.py)."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..state import State
from ..training.replay import check_replayed, record_call
from ..windows import Window


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
            self.calls[form] = record_call(segment, (count, *tensors), pool), segment
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
        check_replayed(self.model, lambda: self(*given)[0], lambda: self.as_written(*given)[0])
