"""The task of a model's head, and the classes that have it."""

from typing import Any, Literal

import transformers
from transformers.models.auto import modeling_auto as auto

from ..models.registry import MODELS
from .registry import BACKBONES, ArchitectureSpec

Task = Literal[
    "causal-lm",
    "masked-lm",
    "question-answering",
    "sequence-classification",
    "token-classification",
    "bare",
]

_CLASS_NAMES: dict[Task, Any] = {
    "causal-lm": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked-lm": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "question-answering": auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "sequence-classification": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "token-classification": auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "bare": auto.MODEL_MAPPING_NAMES,
}


def head_classes(model_type: str, row: ArchitectureSpec) -> dict[Task, str]:
    """Class name of each head an architecture has in transformers (or here) and holdover can run."""
    left_out = "masked-lm" if row.causal or model_type == "xlnet" else "causal-lm"
    found: dict[Task, str] = {}
    for task, names in _CLASS_NAMES.items():
        name = names.get(model_type)
        if name is not None and task != left_out:
            found[task] = name[0] if isinstance(name, (tuple, list)) else name
    for task, cls in MODELS.get(model_type, {}).items():
        found[task] = cls.__name__
    return found


def class_named(name: str) -> Any:
    """A model's class: one of our own, or one of those that holdover runs in transformers."""
    own = {cls.__name__: cls for heads in MODELS.values() for cls in heads.values()}
    if name in own:
        return own[name]
    # Saved files name classes: no other attribute of transformers may be reached through them.
    for model_type, row in BACKBONES.items():
        if name in head_classes(model_type, row).values():
            return getattr(transformers, name)
    raise ValueError(
        f"The architecture {name!r} is not a model class that holdover runs (holdover backbones lists "
        "them)."
    )


def task_of(model: Any, row: ArchitectureSpec) -> Task:
    known = head_classes(model.config.model_type, row)
    for task, name in known.items():
        if type(model).__name__ == name:
            return task
    raise ValueError(
        f"holdover does not know the head of {type(model).__name__}; for "
        f"{model.config.model_type} it runs {', '.join(known.values())}."
    )
