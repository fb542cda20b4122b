"""Question answering over long contexts: train a reader, score it, ask it questions.

train_reader(QAOptions.of(model="roberta-base", data="hotpotqa"))
record = evaluate_reader(QAEvalOptions.of(model="runs/qa"))
answer = ask(open_reader("runs/qa"), "Who wrote it?", text)
"""

from ..lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".asking": "LocatedAnswer ask run_ask",
        ".eval_options": "AskOptions QAEvalOptions",
        ".evaluation": "evaluate_reader",
        ".folder": "SavedReader open_reader",
        ".options": "QAOptions",
        ".reader": "Reader",
        ".training": "train_reader",
    },
)
