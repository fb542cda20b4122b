"""Every kind of carried state by name."""

from .base import Carry
from .blocks import BlockCarry
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
