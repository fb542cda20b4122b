"""Switches of a model that hold inside a `with`, for the thread (or asyncio task) that opened it.

They live in a context variable and not on the model: what one thread switches off, another still uses.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from ..config import RecurrenceConfig


@dataclass(frozen=True)
class Overrides:
    """What this thread reads a model with, in place of the model's own."""

    disabled: bool = False
    uncompiled: bool = False
    settings: RecurrenceConfig | None = None


_OVERRIDES: ContextVar[Mapping[int, Overrides]] = ContextVar("holdover_overrides")
_NONE: Mapping[int, Overrides] = {}


def overrides_of(model: Any) -> Overrides:
    return _OVERRIDES.get(_NONE).get(id(model), Overrides())


def change_overrides(model: Any, **changes: Any) -> None:
    changed = replace(overrides_of(model), **changes)
    others = {key: value for key, value in _OVERRIDES.get(_NONE).items() if key != id(model)}
    _OVERRIDES.set(others if changed == Overrides() else {**others, id(model): changed})


@contextmanager
def overridden(model: Any, **changes: Any) -> Iterator[None]:
    """Only these switches are put back: contexts of generators may end in any order."""
    before = {name: getattr(overrides_of(model), name) for name in changes}
    change_overrides(model, **changes)
    try:
        yield
    finally:
        change_overrides(model, **before)
