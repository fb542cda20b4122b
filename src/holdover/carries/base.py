"""The contract of a carried state.

A kind of state answers four questions:

    state_shapes    what the state is: the name and the shape of every tensor, for one row
    read            what a window receives: see `CarryInputs`
    observe         what it sees while the window runs: the outputs of the layers it `wants`
    write           what the next state is

A kind is an `nn.Module` that holds weights and nothing else. What belongs to one window is in the
`StepTrace` that every method is given. Maps with weights belong in `read`, not in `write`: there they
are trained even where the gradient through the state is cut.

Row selection, reset, moving, detaching, saving and beams are the same for every kind (`State`,
`CarryInputs.rows_at`): they work on whatever batch-first tensors there are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..config import RecurrenceConfig
from .memory_settings import NoSettings

Tensors = Mapping[str, Tensor]
KeysValues = Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ModelDims:
    """The sizes of the model that a kind of state is attached to."""

    hidden: int  # k
    embedding: int  # e
    layers: int  # L
    recurrent_layers: tuple[int, ...] = ()  # from 0, those with a state of their own
    state_vectors: int = 0  # S of those layers
    key_value_heads: int = 0
    head_size: int = 0


@dataclass(frozen=True)
class CarryInputs:
    """What a window receives from the past. Each field enters the model at its own place.

    All tensors are batch-first. Fields that are None do nothing.
    """

    rows: Tensor | None = None  # [B, m, k] keys and values at the insert layers
    prefix: Tensor | None = None  # [B, m, e] embeddings before the window
    suffix: Tensor | None = None  # [B, m, e] embeddings after it
    memory: Sequence[Tensor] | None = None  # L x [B, M, k] older inputs of every layer
    memory_length: int | None = None  # M that the model's own memory has, also when it is empty
    # L x ([B, heads, P, d], same): keys and values that transformers' cache holds before the tokens.
    keys_values: KeysValues | None = None
    position_offset: Tensor | None = None  # [B] position of the window's first token
    filled: Tensor | None = None  # [B] how many of the M or P places hold something, at their end
    visible: Tensor | None = None  # [B] bool: rows that see rows, prefix and states; None = all
    states: Mapping[int, Tensor] | None = None  # of recurrent layers (from 0): [B, S, k]
    # Keys and values of those states, computed once for a window by the hooks.
    state_keys: Mapping[int, tuple[Tensor, Tensor]] | None = None

    def rows_at(self, index: Tensor) -> "CarryInputs":
        """These rows of the batch, in this order, as often as the index names them."""
        return replace(
            self, **{f.name: _rows_at(getattr(self, f.name), index) for f in fields(self)}
        )


@dataclass(frozen=True)
class Block:
    """What the next state of a recurrent layer is made from."""

    inputs: Tensor  # [B, T, k] of the layer
    memory: Tensor | None  # [B, M, k] its older inputs
    unseen: Tensor | None  # [B, M + T] bool: places of both that hold nothing; None = none
    state: Tensor | None  # [B, S, k] the carried state
    present: Tensor | None  # [B] bool: rows that carry something; None = all


@dataclass
class StepTrace:
    """One window as its kind of state sees it: the carried past, and what the forward pass leaves."""

    batch: int
    tokens: int | Tensor  # tokens of the window, without padding: one number, or [B]
    window: int  # T of a full window
    overlap: int  # tokens that the next window reads again
    settings: Any  # of the kind, as they are for this call
    carried: Tensors | None = None  # the state's tensors; None in the first window
    present: Tensor | None = None  # [B] bool: rows that have a past; None = all
    device: torch.device | None = None
    # A window that is read in pieces is not pooled before `write`.
    whole: bool = True
    # Set by `observe`, and by the precomputed layers.
    partial: Any = None
    # Set by the hooks, for kinds that need them.
    suffix: Tensor | None = None  # [B, m, k] outputs of the positions after the window
    layer_inputs: list[Tensor] | None = None  # L x [B, T, k]
    keys_values: KeysValues | None = None  # L x ([B, heads, T, d], same) of the window's tokens
    next_state: Callable[[int, Block], Tensor] | None = None  # of a recurrent layer (from 0)


class Carry(nn.Module):
    """Base of the kinds of carried state."""

    # The dataclass with this kind's own settings (torch-free, next to the kind).
    Settings: ClassVar[type] = NoSettings
    # The hooks must record every layer's input.
    needs_layer_inputs = False
    # Keys and values enter and leave through transformers' own cache, without hooks.
    uses_cache = False
    # False: windows do not depend on each other.
    carries_state = True
    # Carries the states of a model's recurrent layers.
    carries_recurrent_layers = False
    # Positions the kind adds to every window.
    extra_positions = 0

    def __init__(self, config: RecurrenceConfig, dims: ModelDims) -> None:
        super().__init__()
        self.settings = config.kind
        self.dims = dims

    @classmethod
    def check_model(cls, config: RecurrenceConfig, model: Any, spec: Any, dims: ModelDims) -> None:
        """Refuse a model that this kind cannot work with. spec: the model's ArchitectureSpec."""

    def settings_for_reading(
        self, before: RecurrenceConfig, changes: Mapping[str, Any], memory_length: int | None
    ) -> dict[str, Any]:
        """Settings that change with the window and overlap a model is read with."""
        return {} if memory_length is None else {"memory_length": memory_length}

    def state_shapes(self, window: int) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor of one row's state, without the batch dimension."""
        raise NotImplementedError

    def insert_layers(self) -> Sequence[int]:
        """Layers (from 0) whose attention reads `CarryInputs.rows`."""
        return ()

    def state_free_layers(self) -> int:
        """How many layers run before the state enters, and can be computed without it."""
        return 0

    def wants(self, layer: int) -> bool:
        """Whether `observe` is given this layer's output (layers count from 0)."""
        return False

    def read(self, trace: StepTrace) -> CarryInputs:
        """What the window receives; `trace.carried` is the state, None in the first window."""
        raise NotImplementedError

    def observe(self, trace: StepTrace, layer: int, hidden: Tensor) -> None:
        """Take note of one layer's output [B, T, k], padding included, in `trace.partial`."""

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        """The next state's tensors, batch-first."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Draw the weights anew."""


def counts(length: int | Tensor, device: torch.device) -> Tensor:
    """[1] or [B]; a number is written on the device: a copy from the host would have to wait."""
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
    """The carried tensor [B, m, k], with a learned start [m, k] in rows that have no past."""
    begin = start.expand(batch, -1, -1)
    if carried is None or present is None:
        return begin if carried is None else carried
    return torch.where(expand_present(present, carried), carried, begin)


def expand_present(present: Tensor, like: Tensor) -> Tensor:
    return present.reshape(-1, *[1] * (like.ndim - 1))


def last_positions(older: Tensor, new: Tensor, tokens: int | Tensor, length: int) -> Tensor:
    """[B, length, ...]: of older [B, length, ...] and new [B, T, ...] the part that ends with each
    row's last token; padding follows the tokens."""
    if isinstance(tokens, int):
        return torch.cat([older[:, tokens:], new[:, -length:]], 1)
    both = torch.cat([older, new], 1)
    index = tokens[:, None] + torch.arange(length, device=both.device)
    index = index.reshape(*index.shape, *[1] * (both.ndim - 2))
    return both.gather(1, index.expand(-1, -1, *both.shape[2:]))


def _rows_at(value: Any, index: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[index]
    if isinstance(value, Mapping):
        return {key: _rows_at(inner, index) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_rows_at(inner, index) for inner in value)
    return value
