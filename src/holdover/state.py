"""State: the tensors that one window hands to the next, as an immutable value.

* Every tensor is batch-first. A row is one document, for every kind of state.
* `present` is None when every row has a past, so the common case needs no mask.
* With overlap > 0, `tail` holds the last tokens, so that the next call reads them again.
* On disk it is one safetensors file. Its header names the model and the configuration it belongs to.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor
from torch.utils import _pytree as pytree

from .carries.kinds import KIND_SETTINGS
from .config import kind_fields
from .storage import STATE, check_version, write_atomically

FORMAT_NAME = "holdover.state.v"
FORMAT = f"{FORMAT_NAME}{STATE.version}"
# Token ids are never negative, so this marks positions of the tail that hold no token.
NO_TOKEN = -1


@dataclass(frozen=True)
class State:
    """The carried state of a batch of documents."""

    tensors: Mapping[str, Tensor]
    present: Tensor | None = None  # [B] bool
    tail: Tensor | None = None  # [B, o] token ids, or NO_TOKEN
    owner: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        return next(iter(self._all().values())).shape[0]

    @property
    def device(self) -> torch.device:
        return next(iter(self._all().values())).device

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._all().values())

    def detach(self) -> "State":
        return self._map(Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> "State":
        """Move to a device, or change the precision of floating-point tensors (not of masks or ids)."""

        def move(tensor: Tensor) -> Tensor:
            moved = tensor.to(*args, **kwargs)
            return moved if tensor.is_floating_point() else tensor.to(moved.device)

        return self._map(move)

    def rows(self, index: Any) -> "State":
        """Select rows by index, in its order: for batches, beams or single documents."""
        chosen = torch.as_tensor(index, device=self.device)
        if chosen.ndim == 0:
            chosen = chosen[None]
        return self._map(lambda tensor: tensor[chosen])

    def reset(self, mask: Tensor) -> "State":
        """Forget the past of the rows where the mask is true."""
        keep = ~mask.to(device=self.device, dtype=torch.bool)
        if keep.shape != (self.batch_size,):
            raise ValueError(
                f"State.reset takes one flag per row: shape ({self.batch_size},), not "
                f"{tuple(mask.shape)}."
            )
        wiped = {
            # torch.where, not a product: a non-finite past must not survive as 0 * inf.
            name: torch.where(_like(keep, tensor), tensor, torch.zeros_like(tensor))
            for name, tensor in self.tensors.items()
        }
        tail = None
        if self.tail is not None:
            tail = torch.where(keep[:, None], self.tail, torch.full_like(self.tail, NO_TOKEN))
        present = keep if self.present is None else self.present & keep
        return replace(self, tensors=wiped, present=present, tail=tail)

    @staticmethod
    def concat(states: "list[State]") -> "State":
        """One batch from several states of the same model. A row without a tail gets an empty one."""
        if not states:
            raise ValueError("State.concat needs at least one state.")
        first = states[0]
        for number, other in enumerate(states, start=1):
            check_owner(other.owner, first.owner, "the first state")
            _check_fits(other, first, number)
        present = None
        if any(state.present is not None for state in states):
            present = torch.cat([state.presence() for state in states])
        width = max(0 if state.tail is None else state.tail.shape[1] for state in states)
        tail = torch.cat([state._tail(width) for state in states]) if width else None
        tensors = {
            name: torch.cat([state.tensors[name] for state in states]) for name in first.tensors
        }
        return replace(first, tensors=tensors, present=present, tail=tail)

    def _tail(self, width: int) -> Tensor:
        """[B, width] the tail, with NO_TOKEN in front of it where it is shorter."""
        tail = self.tail
        if tail is None:
            tail = torch.empty(self.batch_size, 0, dtype=torch.long, device=self.device)
        return torch.nn.functional.pad(tail, (width - tail.shape[1], 0), value=NO_TOKEN)

    def presence(self) -> Tensor:
        """[B] bool, even if `present` is None."""
        if self.present is not None:
            return self.present
        return torch.ones(self.batch_size, dtype=torch.bool, device=self.device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to one file, atomically."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self._all().items()}
        header = {"format": FORMAT, "owner": json.dumps(dict(self.owner), sort_keys=True)}
        write_atomically(Path(path), to_safetensors(tensors, metadata=header))

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str | torch.device = "cpu") -> "State":
        """Read a state. Whether it fits a model is checked when that model reads it."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"There is no state file at {path}.")
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                header = file.metadata() or {}
                content = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"{path} is not a readable state file ({error}); it is truncated, damaged or "
                "something else: save the state again with State.save."
            ) from error
        written_as = str(header.get("format"))
        number = written_as.removeprefix(FORMAT_NAME)
        if number == written_as or not number.isdecimal():
            raise ValueError(
                f"{path} is a safetensors file but not a holdover state: its header says "
                f"{header.get('format')!r}, and {FORMAT!r} was expected."
            )
        check_version(STATE, int(number), path)
        if not content:
            raise ValueError(f"{path} is damaged: it holds no tensors.")
        if differing := _differing_rows(content):
            raise ValueError(
                f"{path} is damaged: its tensors have different numbers of rows ({differing})."
            )
        special = {name: content.pop(f"state.{name}", None) for name in ("present", "tail")}
        tensors = {name.removeprefix("carry."): tensor for name, tensor in content.items()}
        return cls(tensors=tensors, owner=json.loads(header["owner"]), **special)

    def _all(self) -> dict[str, Tensor]:
        named = {f"carry.{name}": tensor for name, tensor in self.tensors.items()}
        if self.present is not None:
            named["state.present"] = self.present
        if self.tail is not None:
            named["state.tail"] = self.tail
        return named

    def _map(self, change: Callable[[Tensor], Tensor]) -> "State":
        return replace(
            self,
            tensors={name: change(tensor) for name, tensor in self.tensors.items()},
            present=None if self.present is None else change(self.present),
            tail=None if self.tail is None else change(self.tail),
        )


def differing_keys(owner: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """The entries in which two models' signatures differ."""
    # Signatures of version 0.1.0 hold the settings of all kinds of state, not only of their own.
    kind_settings = {name for kind in KIND_SETTINGS.values() for name in kind_fields(kind)}
    one_sided = {*owner} ^ {*expected}
    return [
        key
        for key in sorted({*owner, *expected})
        if owner.get(key) != expected.get(key)
        and not (key in one_sided and key in kind_settings)
        # A state made in training has no fingerprint of weights: they were moving.
        and not (key == "weights" and None in (owner.get(key), expected.get(key)))
    ]


def check_owner(owner: Mapping[str, Any], expected: Mapping[str, Any], whose: str) -> None:
    """Refuse a state that another model or configuration made, saying what differs."""
    if not owner:
        return
    differing = [
        f"{key} is {owner.get(key)!r} in the state and {expected.get(key)!r} in {whose}"
        for key in differing_keys(owner, expected)
    ]
    if differing:
        raise ValueError(
            f"This state does not belong to {whose}: {'; '.join(differing)}. "
            "Make it again with this model, or, if you know that it fits, use model.adopt(state)."
        )


def _check_fits(state: State, first: State, number: int) -> None:
    """Refuse a state that cannot be in one batch with the first one."""
    if differing := _differing_rows(state._all()):
        raise ValueError(
            f"State {number} of State.concat has different numbers of rows ({differing}): every "
            "tensor of a state needs one row per document."
        )
    if set(state.tensors) != set(first.tensors):
        raise ValueError(
            f"State.concat needs states with the same tensors: state {number} has the tensors "
            f"{', '.join(sorted(state.tensors))}, the first state {', '.join(sorted(first.tensors))}."
        )
    for name, tensor in state.tensors.items():
        shape, expected = tuple(tensor.shape[1:]), tuple(first.tensors[name].shape[1:])
        if shape != expected:
            raise ValueError(
                f"State.concat needs states of one shape: {name} has the shape {shape} per row in "
                f"state {number} and {expected} in the first state."
            )


def _differing_rows(tensors: Mapping[str, Tensor]) -> str:
    """The number of rows of each tensor, if they are not all the same."""
    rows = {name: tensor.shape[0] if tensor.ndim else 0 for name, tensor in tensors.items()}
    if len(set(rows.values())) <= 1:
        return ""
    return ", ".join(f"{name}: {count}" for name, count in rows.items())


def _like(flags: Tensor, tensor: Tensor) -> Tensor:
    return flags.reshape(-1, *[1] * (tensor.ndim - 1))


def _flatten(state: State) -> tuple[list[Any], Any]:
    names = tuple(state.tensors)
    leaves = [*state.tensors.values(), state.present, state.tail]
    return leaves, (names, state.owner)


def _unflatten(leaves: Any, context: Any) -> State:
    names, owner = context
    *tensors, present, tail = leaves
    return State(dict(zip(names, tensors, strict=True)), present, tail, owner)


pytree.register_pytree_node(State, _flatten, _unflatten, serialized_type_name="holdover.State")
