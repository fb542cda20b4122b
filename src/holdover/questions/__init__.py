"""Questions over long contexts: files in HotpotQA's format, read window by window.

    questions = open_questions(QuestionOptions(data="hotpotqa", data_dir=folder), "train")
    pairs = Pairs(PairTokenizer(encoder).encode(questions.items), Layout(window=512))
    for batch in pairs.shuffled_batches(8, seed=0, epoch=0, start=0): ...

* A window is what the tokenizer makes of a pair: the question and a part of the context.
* Everything is read into memory.
"""

from .batches import Layout, Pairs, QuestionBatch
from .files import read_questions
from .options import QuestionOptions
from .pairs import Pair, PairTokenizer
from .question import KINDS, Kind, Question, occurrences
from .sources import Questions, held_out_end, open_questions, training_questions

__all__ = [
    "KINDS",
    "Kind",
    "Layout",
    "Pair",
    "PairTokenizer",
    "Pairs",
    "Question",
    "QuestionBatch",
    "QuestionOptions",
    "Questions",
    "held_out_end",
    "occurrences",
    "open_questions",
    "read_questions",
    "training_questions",
]
