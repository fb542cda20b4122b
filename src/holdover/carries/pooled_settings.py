"""Settings of the pooled state. The defaults are those published for GPT-2."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from .setting_checks import as_tuples, at_least, check_choices


@dataclass(frozen=True, kw_only=True)
class PooledSettings:
    """Pooled state (carry="pooled"): the mean of a window, read as one key and value."""

    TRAINING_ONLY: ClassVar = frozenset({"lower_layers"})

    slots: int = 1
    """Vectors in the state; memory tokens: read positions, and the same number of write positions."""
    insert_layer: int | Literal["all"] = 2
    """Layer that reads a pooled state, counted from 1, or "all"; 2 as published."""
    pooling: Literal["mean", "max", "last", "attention", "fixed-key"] = "mean"
    """How the positions of a window become one vector a slot."""
    mix_layers: Literal["all", "last"] = "all"
    """Layers whose outputs are pooled: a learned mix of all, or the last alone."""
    map_hidden: tuple[int, ...] = (200, 200, 200)
    """Hidden sizes of the feed-forward map between windows; () is one linear map."""
    map_activation: Literal["relu", "gelu"] = "relu"
    """Activation between the layers of that map."""
    start: Literal["none", "learned"] = "none"
    """What the first window of a document reads: nothing (the method), or a learned state."""
    pool_positions: Literal["all", "non_overlap"] = "all"
    """Positions that are pooled; non_overlap leaves out those the next window reads again."""
    lower_layers: Literal["auto", "batched", "per_window"] = "auto"
    """Run the layers below insert_layer for all windows in one batch, or window by window."""

    def __post_init__(self) -> None:
        as_tuples(self, "map_hidden")
        check_choices(self)
        at_least("slots", self.slots, 1)
        for size in self.map_hidden:
            at_least("map_hidden", size, 1)
        if self.insert_layer != "all":
            at_least("insert_layer", self.insert_layer, 1, or_else='or the word "all"')
