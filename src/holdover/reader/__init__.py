"""Readers: encoders with a carried state that answer questions over contexts of many windows."""

from .folder import SavedReader, build_reader, fitting, open_reader, save_reader
from .loss import Best, answer_nll, best_answers
from .model import Reader, Said

__all__ = [
    "Best",
    "Reader",
    "Said",
    "SavedReader",
    "answer_nll",
    "best_answers",
    "build_reader",
    "fitting",
    "open_reader",
    "save_reader",
]
