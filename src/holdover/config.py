"""RecurrenceConfig: which state windows carry, and how.

* Plain data: frozen, keyword-only, the same flat keys in Python, in `config.json` and in error messages.
* Fields that all kinds share are defined here. The others are routed to the settings class of the kind
  (carries/NAME_settings.py) and can be read as attributes here too.
* What can be checked without a model is checked here; what needs the model (positions, layers) is
  checked when it is attached.
"""

import dataclasses
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .carries.kinds import KIND_SETTINGS, settings_class
from .carries.setting_checks import as_tuples, at_least, check_choices

# Fields that only rsa=True uses.
RSA_FIELDS = ("rem_counts", "rem_dilations", "rem_gate", "rem_truncate", "rsa_layers")
# Fields that change how a model is trained, not what its state means.
TRAINING_ONLY = frozenset({"detach_state", "horizon", "recompute", "memory_budget"})


def kind_fields(kind: type) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind)}


@dataclass(frozen=True, kw_only=True, init=False)
class RecurrenceConfig:
    """What one window hands to the next.

    The defaults are the method as published for GPT-2: the mean over positions of a softmax-weighted
    mix of all layers, mapped by three hidden layers, read as one extra key and value by layer 2.
    """

    NOT_SETTINGS: ClassVar = frozenset({"kind"})

    window: int = 300
    """Tokens a window holds (T)."""
    overlap: int = 0
    """Tokens of a window that the next one reads again (o)."""
    carry: str = "pooled"
    """Kind of state: pooled summary vectors, memory tokens, the backbone's own memory (XLNet,
    Transformer-XL), that and the states of its recurrent layers ("blocks"), or none."""
    kind: Any = None
    """Settings of the kind; built from the other keywords."""
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
    """Bytes of activations recompute="auto" may keep; none takes a share of the free memory."""

    def __init__(self, **values: Any) -> None:
        shared = {f.name: f.default for f in dataclasses.fields(self) if f.name != "kind"}
        # Subclasses may have other defaults for fields of a kind.
        own_defaults = {
            name: shared.pop(name) for name in list(shared) if name not in SHARED_FIELDS
        }
        for name in shared:
            object.__setattr__(self, name, values.pop(name, shared[name]))
        kind_class = settings_class(self.carry)
        known = kind_fields(kind_class)
        if isinstance(given := values.pop("kind", None), kind_class):
            # dataclasses.replace passes the kind's settings along.
            values = {**vars(given), **values}
        chosen = {name: value for name, value in own_defaults.items() if name in known}
        chosen |= {name: values.pop(name) for name in list(values) if name in known}
        _refuse_unknown(self.carry, values, [*shared, *known], own_defaults)
        object.__setattr__(self, "kind", kind_class(**chosen))
        for name in own_defaults:
            value = getattr(self.kind, name) if name in known else _general_default(name)
            object.__setattr__(self, name, value)
        self._check()

    def __getattr__(self, name: str) -> Any:
        """A field of the kind; a kind that does not have it reads as the field's default."""
        if name.startswith("__") or name == "kind":
            raise AttributeError(name)
        if hasattr(self.kind, name):
            return getattr(self.kind, name)
        return _general_default(name)

    def _check(self) -> None:
        as_tuples(self, "rem_counts", "rem_dilations")
        if self.rsa_layers != "all":
            as_tuples(self, "rsa_layers")
        check_choices(self)
        at_least("window", self.window, 1)
        at_least("overlap", self.overlap, 0)
        for name in ("horizon", "memory_budget", "rem_truncate"):
            if getattr(self, name) is not None:
                at_least(name, getattr(self, name), 1)
        if self.overlap >= self.window:
            raise ValueError(
                f"overlap={self.overlap} must be smaller than window={self.window}: "
                "every window has to read at least one new token."
            )
        self._check_rsa()

    def _check_rsa(self) -> None:
        for count in self.rem_counts:
            at_least("rem_counts", count, 0)
        if len(self.rem_counts) != 6 or sum(self.rem_counts) < 1:
            raise ValueError(
                f"rem_counts={self.rem_counts} must be six numbers of heads, with a regular, a cos, a "
                "sin matrix and with the dilated three, and at least 1 together."
            )
        for dilation in self.rem_dilations:
            at_least("rem_dilations", dilation, 1)
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
                at_least("rsa_layers", layer, 1, or_else='or the word "all"')
            if not self.rsa_layers or len(set(self.rsa_layers)) != len(self.rsa_layers):
                raise ValueError(
                    f"rsa_layers={self.rsa_layers} must name one or more layers, each of them once, or "
                    'be the word "all".'
                )

    @classmethod
    def further_settings(cls) -> list[type]:
        """Settings classes of the kinds: their fields are keywords, flags and keys too."""
        return list(dict.fromkeys(KIND_SETTINGS.values()))

    def to_dict(self) -> dict[str, Any]:
        """Flat plain values, as a JSON file has them: the shared fields and those of the kind."""
        values = {name: getattr(self, name) for name in SHARED_FIELDS}
        values |= dataclasses.asdict(self.kind)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RecurrenceConfig":
        return cls(**values)

    def replace(self, **changes: Any) -> "RecurrenceConfig":
        return type(self)(**{**self.to_dict(), **changes})

    def state_fields(self) -> dict[str, Any]:
        """The fields that decide what a state means: states are exchanged only when they agree."""
        # States of models without rsa do not mention it.
        unused = frozenset() if self.rsa else {"rsa", *RSA_FIELDS}
        training_only = TRAINING_ONLY | self.kind.TRAINING_ONLY
        return {
            key: value
            for key, value in self.to_dict().items()
            if key not in training_only and key not in unused
        }


SHARED_FIELDS = tuple(
    field.name for field in dataclasses.fields(RecurrenceConfig) if field.name != "kind"
)


def _general_default(name: str) -> Any:
    for kind in KIND_SETTINGS.values():
        if name in kind_fields(kind):
            return kind_fields(kind)[name].default
    raise AttributeError(f"RecurrenceConfig has no field {name!r}.")


def _refuse_unknown(
    carry: str, values: dict[str, Any], known: list[str], own_defaults: dict[str, Any]
) -> None:
    """Refuse a keyword that does not exist, and one that would do nothing for this kind."""
    # Files of version 0.1.0 hold the fields of all kinds, at their defaults.
    elsewhere: dict[str, list[Any]] = {name: [value] for name, value in own_defaults.items()}
    for kind in dict.fromkeys(KIND_SETTINGS.values()):
        for name, field in kind_fields(kind).items():
            elsewhere.setdefault(name, []).append(field.default)
    for name, value in values.items():
        if name not in elsewhere:
            near = difflib.get_close_matches(name, [*known, *elsewhere], n=3) or known
            raise ValueError(
                f"{name!r} is not a field of RecurrenceConfig; did you mean {', '.join(near)}?"
            )
        if (tuple(value) if isinstance(value, list) else value) not in elsewhere[name]:
            raise ValueError(
                f"{name}={value!r} has no effect with carry={carry!r}: leave it out, or choose another "
                "kind of state."
            )
