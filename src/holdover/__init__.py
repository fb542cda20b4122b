"""holdover gives pretrained transformers a memory: a small state carried from window to window."""

from .attach import (
    RecurrentModel,
    RecurrentModelConfig,
    RecurrentOutput,
    Wanted,
    add_recurrence,
    remove_recurrence,
)
from .backbones import BACKBONES
from .config import RecurrenceConfig
from .evaluate import lens
from .generate import Session
from .mechanisms import CARRIES
from .state import State
from .unroll import Recompute, unroll
from .windows import Window, cut

__version__ = "0.1.0"

__all__ = [
    "BACKBONES",
    "CARRIES",
    "Recompute",
    "RecurrenceConfig",
    "RecurrentModel",
    "RecurrentModelConfig",
    "RecurrentOutput",
    "Session",
    "State",
    "Wanted",
    "Window",
    "add_recurrence",
    "cut",
    "lens",
    "remove_recurrence",
    "unroll",
]
