"""The mathematics of recurrence: tensors in, tensors out; no model, data or disk.

Letters in shape comments, here and everywhere: B rows of a batch, T positions of a window, k width of
the hidden states, e width of the embeddings, m slots of the state, L layers, V vocabulary, N columns
of a text.

A kind of carry is one file with one class, and one row of this table.
"""

from .blocks import BlockCarry
from .carry import Carry, Reading, Shape
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

__all__ = [
    "CARRIES",
    "BlockCarry",
    "Carry",
    "MemoryCarry",
    "NoCarry",
    "PooledCarry",
    "Reading",
    "Shape",
    "TokenCarry",
]
