"""A stock model with a carried state: attaching it, reading texts, heads, saving."""

from .add_remove import add_recurrence, remove_recurrence
from .model import RecurrentModel, Wanted
from .output import RecurrentOutput
from .saving import RecurrentModelConfig

__all__ = [
    "RecurrentModel",
    "RecurrentModelConfig",
    "RecurrentOutput",
    "Wanted",
    "add_recurrence",
    "remove_recurrence",
]
