"""A stock model with a carried state: attaching it, reading texts, heads, saving, opening by name."""

from .add_remove import add_recurrence, remove_recurrence
from .model import RecurrentModel, Wanted
from .opening import (
    BEST,
    CHECKPOINT,
    check_vocabulary,
    model_folder,
    numbered,
    open_model,
    quietly,
    random_model,
    recurrence_of,
)
from .output import RecurrentOutput
from .saving import RecurrentModelConfig

__all__ = [
    "BEST",
    "CHECKPOINT",
    "RecurrentModel",
    "RecurrentModelConfig",
    "RecurrentOutput",
    "Wanted",
    "add_recurrence",
    "check_vocabulary",
    "model_folder",
    "numbered",
    "open_model",
    "quietly",
    "random_model",
    "recurrence_of",
    "remove_recurrence",
]
