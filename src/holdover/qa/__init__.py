"""Readers of long contexts: trained, scored, asked.

train_reader(QAOptions.of(model="roberta-base", data="hotpotqa"))
record = evaluate_reader(QAEvalOptions.of(model="runs/qa"))
answer = ask(open_reader("runs/qa"), "Who wrote it?", text)
"""

from ..reader import Reader, SavedReader, open_reader
from ..train import QAOptions, train_reader
from .asking import Asked, ask, run_ask
from .evaluation import evaluate_reader
from .options import AskOptions, QAEvalOptions

__all__ = [
    "AskOptions",
    "Asked",
    "QAEvalOptions",
    "QAOptions",
    "Reader",
    "SavedReader",
    "ask",
    "evaluate_reader",
    "open_reader",
    "run_ask",
    "train_reader",
]
