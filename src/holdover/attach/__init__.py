"""A stock model with a carried state: attaching it, reading texts, heads, saving, opening by name."""

from .add_remove import add_recurrence, remove_recurrence
from .checks import check_carry
from .model import RecurrentModel, Wanted
from .opening import (
    BEST,
    CHECKPOINT,
    RUN,
    check_vocabulary,
    in_own_memory,
    model_folder,
    numbered,
    open_model,
    quietly,
    random_model,
    read_run,
    recurrence_of,
)
from .outline import Kept, Outline, Precision, kept_bytes, outline
from .output import RecurrentOutput
from .saving import RecurrentModelConfig

__all__ = [
    "BEST",
    "CHECKPOINT",
    "RUN",
    "Kept",
    "Outline",
    "Precision",
    "RecurrentModel",
    "RecurrentModelConfig",
    "RecurrentOutput",
    "Wanted",
    "add_recurrence",
    "check_carry",
    "check_vocabulary",
    "in_own_memory",
    "kept_bytes",
    "model_folder",
    "numbered",
    "open_model",
    "outline",
    "quietly",
    "random_model",
    "read_run",
    "recurrence_of",
    "remove_recurrence",
]
