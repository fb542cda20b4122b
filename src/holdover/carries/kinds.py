"""The settings class of every kind of carried state, by name. Nothing here imports torch.

A kind from another package is found in two ways: `holdover.register_carry` names it, or its package
declares an entry point in the group `holdover.carries`.
"""

from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from .memory_settings import MemorySettings, NoSettings
from .pooled_settings import PooledSettings
from .tokens_settings import TokenSettings

ENTRY_POINTS = "holdover.carries"

KIND_SETTINGS: dict[str, type] = {
    "pooled": PooledSettings,
    "tokens": TokenSettings,
    "memory": MemorySettings,
    "blocks": MemorySettings,
    "none": NoSettings,
}


def settings_class(carry: str) -> type[Any]:
    """The settings class of a kind; a kind of another package is loaded by its entry point."""
    if carry not in KIND_SETTINGS:
        for entry in entry_points(group=ENTRY_POINTS, name=carry):
            # Imported here: a kind brings torch, and parsing a command line must not.
            from .registry import register_carry

            register_carry(carry, entry.load())
    if carry not in KIND_SETTINGS:
        raise ValueError(
            f"carry={carry!r} is not a kind of state; use one of {', '.join(map(repr, kind_names()))}, "
            "or register your own with holdover.register_carry."
        )
    return KIND_SETTINGS[carry]


def load_named_kinds(words: Iterable[str]) -> None:
    """Load the declared kinds that a command line names: their settings become flags."""
    asked = [word for word in words if "recurrence" in word or word.isidentifier()]
    if any("recurrence" in word for word in asked):
        for entry in entry_points(group=ENTRY_POINTS):
            if any(word.rpartition("=")[2] == entry.name for word in asked):
                settings_class(entry.name)


def kind_names() -> list[str]:
    """All kinds: built in, registered, and declared by installed packages."""
    declared = [entry.name for entry in entry_points(group=ENTRY_POINTS)]
    return [*KIND_SETTINGS, *(name for name in declared if name not in KIND_SETTINGS)]
