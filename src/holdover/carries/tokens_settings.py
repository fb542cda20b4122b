"""Settings of memory tokens."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from .setting_checks import as_tuples, at_least, check_choices


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """Memory tokens (carry="tokens"): read positions before a window, write positions after it."""

    TRAINING_ONLY: ClassVar = frozenset()

    slots: int = 1
    """Read positions, and the same number of write positions."""
    map_hidden: tuple[int, ...] = (200, 200, 200)
    """Hidden sizes of the feed-forward map between windows; () is one linear map."""
    map_activation: Literal["relu", "gelu"] = "relu"
    """Activation between the layers of that map."""
    start: Literal["none", "learned"] = "none"
    """What the first window of a document reads: nothing, or a learned state."""

    def __post_init__(self) -> None:
        as_tuples(self, "map_hidden")
        check_choices(self)
        at_least("slots", self.slots, 1)
        for size in self.map_hidden:
            at_least("map_hidden", size, 1)
