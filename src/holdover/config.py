"""RecurrenceConfig: everything that says what is carried between windows, and how.

* Plain data: frozen, keyword-only, the same keys in Python, in `config.json` and in error messages.
* What can be checked without a model is checked here; what needs the model (positions, layers) is
  checked when it is attached.
"""

import dataclasses
import difflib
import math
from dataclasses import dataclass
from typing import Any, Literal

PoolingName = Literal["mean", "max", "last", "attention", "fixed-key"]

CHOICES: dict[str, tuple[str, ...]] = {
    "pooling": ("mean", "max", "last", "attention", "fixed-key"),
    "mix_layers": ("all", "last"),
    "map_activation": ("relu", "gelu"),
    "start": ("none", "learned"),
    "pool_positions": ("all", "non_overlap"),
    "recompute": ("none", "window", "auto"),
    "lower_layers": ("auto", "batched", "per_window"),
}
# What only rsa=True uses.
RSA_FIELDS = ("rem_counts", "rem_dilations", "rem_gate", "rem_truncate", "rsa_layers")


@dataclass(frozen=True, kw_only=True)
class RecurrenceConfig:
    """What one window hands to the next.

    The defaults are the method as published for GPT-2: the mean over positions of a softmax-weighted
    mix of all layers, mapped by three hidden layers, read as one extra key and value by layer 2.
    """

    window: int = 300
    """Tokens a window holds (T)."""
    overlap: int = 0
    """Tokens of a window that the next one reads again (o)."""
    carry: str = "pooled"
    """A name in CARRIES: pooled summary vectors, memory tokens, the backbone's own memory (XLNet,
    Transformer-XL), that and the states of its recurrent layers ("blocks"), or none."""
    slots: int = 1
    """Vectors in the state (with carry="tokens": read positions, and as many write positions)."""
    insert_layer: int | Literal["all"] = 2
    """Layer that reads a pooled state, counted from 1, or "all"; 2 as published."""
    pooling: PoolingName = "mean"
    """How the positions of a window become one vector a slot."""
    mix_layers: Literal["all", "last"] = "all"
    """Layers whose outputs are pooled: a learned mix of all, or the last alone."""
    map_hidden: tuple[int, ...] = (200, 200, 200)
    """Hidden sizes of the feed-forward map between windows; () is one linear map."""
    map_activation: Literal["relu", "gelu"] = "relu"
    """Between the layers of that map."""
    start: Literal["none", "learned"] = "none"
    """What the first window of a document reads: nothing (the method), or a learned state."""
    pool_positions: Literal["all", "non_overlap"] = "all"
    """Positions that are pooled; non_overlap leaves out those the next window reads again."""
    memory_length: int | None = None
    """Positions carry="memory" and "blocks" keep in every layer; none keeps one window."""
    rsa: bool = False
    """Mix a recurrence over the window's positions into the attention of layers (RSA)."""
    rem_counts: tuple[int, ...] = (0, 0, 0, 0, 2, 2)
    """With rsa, heads that get one: with a regular, a cos, a sin matrix, and the dilated three."""
    rem_dilations: tuple[int, ...] = (3, 6, 9, 12)
    """One for each dilated head, in the order regular, cos 1, sin 1, cos 2, sin 2, ..."""
    rem_gate: float = -3.0
    """Where the gates begin, before the sigmoid: at -3 the recurrence has a share of 0.047."""
    rem_truncate: int | None = None
    """Longest lag of the recurrence; none leaves that to its rates."""
    rsa_layers: tuple[int, ...] | Literal["all"] = "all"
    """Layers with a recurrence in their attention, counted from 1, or "all"."""
    detach_state: bool = False
    """Cut the gradient at every window, and hand out states without a graph."""
    horizon: int | None = None
    """Truncated BPTT: the state is cut before windows h, 2h, ...; none goes through all windows."""
    recompute: Literal["none", "window", "auto"] = "none"
    """Keep every window's activations, recompute each in its backward, or as memory_budget allows."""
    memory_budget: int | None = None
    """Bytes of activations recompute="auto" may keep; none takes a share of what is free."""
    lower_layers: Literal["auto", "batched", "per_window"] = "auto"
    """Run the layers below insert_layer for all windows in one batch, or window by window."""

    def __post_init__(self) -> None:
        for name in ("map_hidden", "rem_counts", "rem_dilations"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.rsa_layers != "all":
            object.__setattr__(self, "rsa_layers", tuple(self.rsa_layers))
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(
                    f"RecurrenceConfig({name}={value!r}) is not a choice; "
                    f"use one of {', '.join(map(repr, choices))}."
                )
        _at_least("window", self.window, 1)
        _at_least("overlap", self.overlap, 0)
        _at_least("slots", self.slots, 1)
        for name in ("horizon", "memory_length", "memory_budget", "rem_truncate"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        for size in self.map_hidden:
            _at_least("map_hidden", size, 1)
        if self.overlap >= self.window:
            raise ValueError(
                f"overlap={self.overlap} must be smaller than window={self.window}: "
                "every window has to read at least one new token."
            )
        if self.insert_layer != "all":
            _at_least("insert_layer", self.insert_layer, 1, or_else='or the word "all"')
        self._check_rsa()

    def _check_rsa(self) -> None:
        for count in self.rem_counts:
            _at_least("rem_counts", count, 0)
        if len(self.rem_counts) != 6 or sum(self.rem_counts) < 1:
            raise ValueError(
                f"rem_counts={self.rem_counts} must be six numbers of heads, with a regular, a cos, a "
                "sin matrix and with the dilated three, and at least 1 together."
            )
        for dilation in self.rem_dilations:
            _at_least("rem_dilations", dilation, 1)
        dilated = sum(self.rem_counts[3:])
        if len(self.rem_dilations) != dilated:
            raise ValueError(
                f"rem_dilations={self.rem_dilations} must have one number for each of the {dilated} "
                f"dilated heads of rem_counts={self.rem_counts}: give {dilated or 'none'} of them."
            )
        if not math.isfinite(self.rem_gate):
            raise ValueError(
                f"rem_gate={self.rem_gate} must be a finite number: no other one can be trained."
            )
        if self.rsa_layers != "all":
            for layer in self.rsa_layers:
                _at_least("rsa_layers", layer, 1, or_else='or the word "all"')
            if not self.rsa_layers or len(set(self.rsa_layers)) != len(self.rsa_layers):
                raise ValueError(
                    f"rsa_layers={self.rsa_layers} must name one or more layers, each of them once, or "
                    'be the word "all".'
                )

    def to_dict(self) -> dict[str, Any]:
        """Plain values as a JSON file has them."""
        values = dataclasses.asdict(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RecurrenceConfig":
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=3) or known
                raise ValueError(
                    f"{key!r} is not a field of RecurrenceConfig; did you mean {', '.join(near)}?"
                )
        return cls(**values)

    def replace(self, **changes: Any) -> "RecurrenceConfig":
        return dataclasses.replace(self, **changes)

    def state_fields(self) -> dict[str, Any]:
        """The fields that decide what a state means: states are exchanged only when they agree."""
        training_only = {
            "detach_state",
            "horizon",
            "recompute",
            "memory_budget",
            "lower_layers",
        }
        # States of models without it do not mention it.
        unused = frozenset() if self.rsa else {"rsa", *RSA_FIELDS}
        return {
            key: value
            for key, value in self.to_dict().items()
            if key not in training_only and key not in unused
        }


def _at_least(name: str, value: Any, least: int, or_else: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        tail = f" {or_else}" if or_else else ""
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}{tail}.")
