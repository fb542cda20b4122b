"""From the arguments of a call to windows: the layout of a batch of texts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..state import NO_TOKEN, State
from ..windows import IGNORED, Window, WindowLayout, join, last_tokens, lay_out


@dataclass(frozen=True)
class WindowedBatch:
    """A batch of texts, laid out as windows."""

    input_ids: Tensor  # [B, N], the tail of an earlier call in front
    places: list[WindowLayout]
    windows: list[Window]
    tail: int  # columns of that tail
    mask: Tensor | None  # [B, N] bool
    starts: Tensor | None  # [B, N] bool

    def join(self, parts: list[Tensor]) -> Tensor:
        """Outputs of the windows [B, T, ...], each kept position in its column of the input."""
        return join(parts, self.places, self.input_ids.shape[1], self.tail)

    def last(self, count: int) -> Tensor | None:
        """[B, count] the tokens that the next call reads again."""
        if count == 0:
            return None
        return last_tokens(self.input_ids, count, self.tail, self.mask, self.starts)

    def tokens(self) -> Tensor | None:
        """[B, N] bool: columns of the input that hold tokens; None = all."""
        return None if self.mask is None else self.mask[:, self.tail :]


def lay_out_batch(
    input_ids: Tensor,
    mask: Tensor | None,
    targets: Tensor | None,
    state: State | None,
    *,
    window: int,
    overlap: int,
    centred: bool,
    padding: int,
    token_type_ids: Tensor | None = None,
    starts: Tensor | None = None,
) -> WindowedBatch:
    """Cut texts into windows that continue where the state stopped reading."""
    if mask is not None and bool(mask.all()):
        mask = None
    if starts is not None and not bool(starts.any()):
        starts = None
    tail = 0
    if state is not None and state.tail is not None:
        tail = state.tail.shape[1]
        before = state.tail != NO_TOKEN
        if mask is not None or not bool(before.all()):
            mask = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask
            mask = torch.cat([before, mask], 1)
        input_ids = torch.cat([state.tail.clamp(min=0), input_ids], 1)
        starts = _widen(starts, tail, False)
        targets = _widen(targets, tail, IGNORED)
        if token_type_ids is not None:
            first = token_type_ids[:, :1].expand(-1, tail)
            token_type_ids = torch.cat([first, token_type_ids], 1)
    if starts is not None and mask is None:
        mask = torch.ones_like(input_ids, dtype=torch.bool)
    places = lay_out(
        input_ids.shape[1],
        window,
        overlap,
        centred=centred,
        tail=tail,
        mask=mask,
        starts=starts,
        device=input_ids.device,
    )
    windows = [
        Window(
            input_ids=place.take(input_ids, padding),
            mask=place.mask,
            targets=None if targets is None else place.kept(place.take(targets), IGNORED),
            begins=place.begins,
            reads=place.reads,
            token_type_ids=None if token_type_ids is None else place.take(token_type_ids, 0),
        )
        for place in places
    ]
    return WindowedBatch(input_ids, places, windows, tail, mask, starts)


def _widen(values: Tensor | None, columns: int, value: int | bool) -> Tensor | None:
    if values is None:
        return None
    return torch.nn.functional.pad(values, (columns, 0), value=value)
