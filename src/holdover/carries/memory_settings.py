"""Settings of a segment memory, and of kinds of state that have none."""

from dataclasses import dataclass
from typing import ClassVar

from .setting_checks import at_least


@dataclass(frozen=True, kw_only=True)
class MemorySettings:
    """Segment memory (carry="memory", "blocks"): the last inputs of every layer."""

    TRAINING_ONLY: ClassVar = frozenset()

    memory_length: int | None = None
    """Positions that every layer keeps; none keeps one window."""

    def __post_init__(self) -> None:
        if self.memory_length is not None:
            at_least("memory_length", self.memory_length, 1)


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """No settings of its own."""

    TRAINING_ONLY: ClassVar = frozenset()
