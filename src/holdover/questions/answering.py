"""A reader's answers to questions, each read once; with its own states or with any others."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from ..runs.processes import all_gather_objects, own_share
from ..state import State
from .answers import exact_match, f1
from .batches import Pairs, QuestionBatch
from .loss import answer_nll, best_answers
from .question import KINDS, Kind
from .reader import Reader

# The state that a window of a question is read with: (question, window) -> one row, or nothing.
StateOf = Callable[[int, int], State | None]


@dataclass(frozen=True)
class Answer:
    kind: Kind
    text: str
    # [start, stop) characters of the context; of yes and no those of the best span beside them.
    start: int
    stop: int
    logp: float  # of this very answer
    nll: float  # -log p of the answer that was expected; 0 where there is none


@dataclass
class KeptStates:
    """The state behind every window of every question, each as one row in main memory."""

    states: dict[int, list[State]] = field(default_factory=dict)

    def keep(self, batch: QuestionBatch, states: tuple[State, ...]) -> None:
        counts = batch.reads.sum(0).tolist()
        on_host = [state.to("cpu") for state in states]
        for row, (number, count) in enumerate(zip(batch.numbers, counts, strict=True)):
            self.states[number] = [state.rows(row) for state in on_host[:count]]

    def before(self, number: int, window: int) -> State | None:
        """What a question's window was read with; behind its last window that one's."""
        own = self.states[number]
        return None if window == 0 else own[min(window, len(own)) - 1]


@dataclass(frozen=True)
class Scored:
    """Answers beside those that were expected, question by question."""

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
    keep: KeptStates | None = None,
    state_of: StateOf | None = None,
    advance: Callable[[int], None] = lambda windows: None,
) -> list[Answer]:
    """The answers of a reader in evaluation mode, in the order of the questions; several processes read
    a share each.

    longest: tokens that an answer may have. state_of: read every window with that state, in place of
    the one that was carried to it.
    """

    def read() -> dict[int, Answer]:
        found: dict[int, Answer] = {}
        for batch in pairs.sorted_batches(rows, own_share()):
            if batch.idle:
                continue
            batch = batch.to(device)
            states = None if state_of is None else _states(batch, state_of, device)
            said = reader(batch, states=states, keep_states=keep is not None)
            if keep is not None:
                keep.keep(batch, said.states)
            best = best_answers(said, longest)
            lists = [best.kind, best.first, best.last, best.logp, answer_nll(said, batch)]
            for number, *values in zip(batch.numbers, *(v.tolist() for v in lists), strict=True):
                found[number] = _answer(pairs, number, *values)
            advance(int(pairs.counts[list(batch.numbers)].sum()))
        return found

    found = {number: answer for part in all_gather_objects(read) for number, answer in part.items()}
    return [found[number] for number in range(len(pairs))]


def score_answers(answers: list[Answer], pairs: Pairs) -> Scored:
    expected = [pair.question.answer or "" for pair in pairs.pairs]
    together = list(zip(answers, expected, strict=True))
    return Scored(
        answers,
        np.array([exact_match(answer.text, wanted) for answer, wanted in together]),
        np.array([f1(answer.text, wanted) for answer, wanted in together]),
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
    found: list[State | None] = []
    for window in range(len(batch.all_read)):
        rows = [state_of(number, window) for number in batch.numbers]
        given = [state for state in rows if state is not None]
        assert len(given) in (0, len(rows)), "a window has a past in all rows or in none"
        found.append(State.concat(given).to(device) if given else None)
    return found
