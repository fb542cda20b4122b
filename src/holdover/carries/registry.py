"""Every kind of carried state by name, and kinds of other packages."""

from ..config import SHARED_FIELDS, kind_fields
from .base import Carry
from .blocks import BlockCarry
from .kinds import KIND_SETTINGS, settings_class
from .memory import MemoryCarry
from .none import NoCarry
from .pooled import PooledCarry
from .tokens import TokenCarry

CARRIES: dict[str, type[Carry]] = {
    "pooled": PooledCarry,
    "tokens": TokenCarry,
    "memory": MemoryCarry,
    "blocks": BlockCarry,
    "none": NoCarry,
}


def register_carry(name: str, kind: type[Carry]) -> None:
    """Make a kind of state usable by name: in RecurrenceConfig(carry=name), `--recurrence name`, saved
    models, evaluations and sessions. Run `holdover.testing.check_carry(kind)` on it first."""
    if not (isinstance(kind, type) and issubclass(kind, Carry)):
        raise TypeError(f"register_carry takes a subclass of holdover.Carry, not {kind!r}.")
    if not name.isidentifier():
        raise ValueError(f"{name!r} cannot name a kind of state: use letters, digits and _.")
    if shared := sorted(set(kind_fields(kind.Settings)) & set(SHARED_FIELDS)):
        raise ValueError(
            f"{kind.Settings.__name__} has the fields {', '.join(shared)}, which RecurrenceConfig has "
            "for all kinds: rename them."
        )
    if CARRIES.get(name, kind) is not kind:
        raise ValueError(f"carry={name!r} is {CARRIES[name].__name__} already: use another name.")
    CARRIES[name] = kind
    KIND_SETTINGS[name] = kind.Settings


def carry_class(name: str) -> type[Carry]:
    """The class of a kind; a kind of another package is loaded by its entry point."""
    settings_class(name)
    return CARRIES[name]
