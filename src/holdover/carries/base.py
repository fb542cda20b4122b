"""Carry: the contract of every kind of carried state.

A window's step is: `read` turns the carried tensors into what the model is given; while the model
runs, `observe` is shown the layers' outputs; `write` makes the tensors that the next window reads.
The maps with weights sit in `read`, not in `write`: they are trained also where the state is cut.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..config import RecurrenceConfig

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class ModelDims:
    """What a carry must know of the model it is attached to."""

    hidden: int  # k
    embedding: int  # e
    layers: int  # L
    recurrent_layers: tuple[int, ...] = ()  # from 0, those with a state of their own


@dataclass(frozen=True)
class CarryInputs:
    """What a window is given of the past, in the terms of the seams that insert it."""

    rows: Tensor | None = None  # [B, m, k] keys and values at the insert layers
    prefix: Tensor | None = None  # [B, m, e] embeddings in front of the window
    suffix: Tensor | None = None  # [B, m, e] embeddings behind it
    memory: Sequence[Tensor] | None = None  # L x [B, M, k] older inputs of every layer
    filled: Tensor | None = None  # [B] how many of the M positions hold something
    visible: Tensor | None = None  # [B] bool: rows that see rows, prefix and states; None = all
    states: Mapping[int, Tensor] | None = None  # of recurrent layers (from 0): [B, S, k]
    # Keys and values of those states, which the seams put in their place once for a window.
    state_keys: Mapping[int, tuple[Tensor, Tensor]] | None = None


@dataclass(frozen=True)
class Block:
    """What the next state of a recurrent layer is made of."""

    inputs: Tensor  # [B, T, k] of the layer
    memory: Tensor | None  # [B, M, k] its older inputs
    unseen: Tensor | None  # [B, M + T] bool: places of both that hold nothing; None = none
    state: Tensor | None  # [B, S, k] what was carried
    present: Tensor | None  # [B] bool: rows that carry something; None = all


class Carry(nn.Module):
    """Base of the kinds of carried state."""

    # Fields of RecurrenceConfig that mean something to this kind alone or to some kinds; any other such
    # field that was set is refused, rather than ignored.
    uses: frozenset[str] = frozenset()
    # The seams must provide every layer's input, beside the layers' outputs.
    needs_layer_inputs = False
    # The layers below the insert layer can be run without the state.
    enters_at_insert_layer = False
    # Positions the carry adds to every window.
    extra_positions = 0

    def __init__(self, config: RecurrenceConfig, shape: ModelDims) -> None:
        super().__init__()
        self.settings = config
        self.shape = shape

    def wants(self, layer: int) -> bool:
        """Whether `observe` is to be shown this layer (from 0)."""
        return False

    def read(self, tensors: Tensors | None, present: Tensor | None, batch: int) -> CarryInputs:
        raise NotImplementedError

    def observe(self, partial: Any, layer: int, hidden: Tensor, length: int | Tensor | None) -> Any:
        """Add one layer's output [B, T, k], of which `length` positions are pooled.

        None: the window is still being written, and positions are pooled when it is complete.
        """
        return partial

    def write(self, trace: "StepTrace") -> dict[str, Tensor]:
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the weights anew."""


@dataclass
class StepTrace:
    """What one window's forward leaves behind for `Carry.write`."""

    batch: int
    length: int | Tensor | None  # positions that are pooled: an int, or [B]; None = not known yet
    tokens: int | Tensor  # positions that hold tokens: an int, or [B]
    partial: Any = None
    suffix: Tensor | None = None  # [B, m, k] outputs of the positions behind the window
    layer_inputs: list[Tensor] | None = None  # L x [B, T, k]
    carried: Tensors | None = None
    present: Tensor | None = None
    device: torch.device | None = None
    finished: bool = False  # the seams saw the whole forward
    pieces: bool = False  # the window was read piece by piece: `partial` is not pooled yet
    # Of a recurrent layer (from 0) the state [B, S, k] behind a block; set by the seams that know it.
    next_state: Callable[[int, Block], Tensor] | None = None


def counts(length: int | Tensor, device: torch.device) -> Tensor:
    """[1] or [B]; a number is written on the device, since a copy from the host would be waited for."""
    return length if isinstance(length, Tensor) else torch.full((1,), length, device=device)


def feed_forward(
    inputs: int, hidden: Sequence[int], outputs: int, activation: str
) -> nn.Sequential:
    """The map between windows: `hidden` layers with an activation, then one without."""
    between = {"relu": nn.ReLU, "gelu": nn.GELU}[activation]
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), between()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def with_start(start: Tensor, carried: Tensor | None, present: Tensor | None, batch: int) -> Tensor:
    """What is carried [B, m, k], and a learned start [m, k] in rows that have no past."""
    begin = start.expand(batch, -1, -1)
    if carried is None or present is None:
        return begin if carried is None else carried
    return torch.where(expand_present(present, carried), carried, begin)


def expand_present(present: Tensor, like: Tensor) -> Tensor:
    return present.reshape(-1, *[1] * (like.ndim - 1))
