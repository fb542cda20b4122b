"""Pretrained Hugging Face models: the only folder that knows transformers' internals."""

from .heads import Task, class_named, head_classes, task_of
from .recording import nobody_looks
from .rows import BACKBONES, Row, row_of
from .rsa import add_rsa, takes_rsa
from .seams import Seams, is_attached, linear_head

__all__ = [
    "BACKBONES",
    "Row",
    "Seams",
    "Task",
    "add_rsa",
    "class_named",
    "head_classes",
    "is_attached",
    "linear_head",
    "nobody_looks",
    "row_of",
    "takes_rsa",
    "task_of",
]
