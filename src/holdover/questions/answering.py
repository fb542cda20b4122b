"""A reader's answers to questions, and their scores; with its own states or with chosen ones.

* Exact match and F1 are counted as in HotpotQA's own evaluation: two answers are compared word by word,
  in lower case, without punctuation and articles. F1 counts each word as often as it occurs.
* Yes and no (and noanswer) are right or wrong: they share no words with any other answer.
"""

import re
import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from ..runs.processes import all_gather_objects, own_share
from ..state import State
from .batches import Pairs, QuestionBatch
from .loss import answer_nll, best_answers
from .question import KINDS, Kind
from .reader import Reader

# (question, window) -> the state to read that window with, one row; None for no state.
StateOf = Callable[[int, int], State | None]
# HotpotQA's answers that cannot be partly right.
WHOLE = frozenset({"yes", "no", "noanswer"})
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """An answer in the form in which answers are compared."""
    letters = answer.lower().translate(_PUNCTUATION)
    # An article becomes a space: "a-b" has lost its dash, and words must not be joined here.
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def exact_match(given: str, expected: str) -> float:
    return float(normalised(given) == normalised(expected))


def f1(given: str, expected: str) -> float:
    given, expected = normalised(given), normalised(expected)
    if given != expected and (given in WHOLE or expected in WHOLE):
        return 0.0
    given_words, expected_words = given.split(), expected.split()
    shared = sum((Counter(given_words) & Counter(expected_words)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(given_words), shared / len(expected_words)
    return 2 * precision * recall / (precision + recall)


@dataclass(frozen=True)
class Answer:
    kind: Kind
    text: str
    # [start, stop) characters of the context; for yes and no, those of the best span.
    start: int
    stop: int
    logp: float  # log p of this answer
    nll: float  # -log p of the expected answer; 0 without one


@dataclass
class QuestionStates:
    """The state after every window of every question, each as one row in main memory."""

    states: dict[int, list[State]] = field(default_factory=dict)

    def keep(self, batch: QuestionBatch, states: tuple[State, ...]) -> None:
        counts = batch.reads.sum(0).tolist()
        on_host = [state.to("cpu") for state in states]
        for row, (number, count) in enumerate(zip(batch.numbers, counts, strict=True)):
            self.states[number] = [state.rows(row) for state in on_host[:count]]

    def before(self, number: int, window: int) -> State | None:
        """The state that a question's window was read with; past its last window, the last state."""
        own = self.states[number]
        return None if window == 0 else own[min(window, len(own)) - 1]


@dataclass(frozen=True)
class Scored:
    """Answers and their scores, in the order of the questions."""

    answers: list[Answer]
    em: np.ndarray  # [Q]
    f1: np.ndarray  # [Q]
    nll: np.ndarray  # [Q]


@torch.no_grad()
def answer_questions(
    reader: Reader,
    pairs: Pairs,
    *,
    rows: int,
    device: torch.device,
    longest: int,
    keep: QuestionStates | None = None,
    state_of: StateOf | None = None,
    advance: Callable[[int], None] = lambda windows: None,
) -> list[Answer]:
    """The answers of a reader in evaluation mode, in the order of the questions. Several processes
    read a share each.

    longest: most tokens of an answer. state_of: the state to read each window with, instead of the
    carried one.
    """

    def read() -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        for batch in pairs.sorted_batches(rows, own_share()):
            if batch.idle:
                continue
            batch = batch.to(device)
            states = None if state_of is None else _states(batch, state_of, device)
            output = reader(batch, states=states, keep_states=keep is not None)
            if keep is not None:
                keep.keep(batch, output.states)
            best = best_answers(output, longest)
            lists = [best.kind, best.first, best.last, best.logp, answer_nll(output, batch)]
            for number, *values in zip(batch.numbers, *(v.tolist() for v in lists), strict=True):
                answers[number] = _answer(pairs, number, *values)
            advance(int(pairs.counts[list(batch.numbers)].sum()))
        return answers

    parts = all_gather_objects(read)
    answers = {number: answer for part in parts for number, answer in part.items()}
    return [answers[number] for number in range(len(pairs))]


def score_answers(answers: list[Answer], pairs: Pairs) -> Scored:
    expected = [pair.question.answer or "" for pair in pairs.pairs]
    both = list(zip(answers, expected, strict=True))
    return Scored(
        answers,
        np.array([exact_match(answer.text, right) for answer, right in both]),
        np.array([f1(answer.text, right) for answer, right in both]),
        np.array([answer.nll for answer in answers]),
    )


def _answer(
    pairs: Pairs, number: int, kind: int, first: int, last: int, logp: float, nll: float
) -> Answer:
    pair = pairs.pairs[number]
    start, stop = pair.text(first, last)
    text = pair.question.context[start:stop] if KINDS[kind] == "span" else KINDS[kind]
    return Answer(KINDS[kind], text, start, stop, logp, nll)


def _states(batch: QuestionBatch, state_of: StateOf, device: torch.device) -> list[State | None]:
    states: list[State | None] = []
    for window in range(len(batch.all_read)):
        rows = [state_of(number, window) for number in batch.numbers]
        given = [state for state in rows if state is not None]
        assert len(given) in (0, len(rows)), "a window has a past in all rows or in none"
        states.append(State.concat(given).to(device) if given else None)
    return states
