"""Does a reader use its state? The same questions without any state, and with another question's.

* As for language models (evaluation/diagnose.py): every window is read again with a chosen state, which
  holds everything that it knows about earlier windows.
* Only questions with at least two windows are read: the others have no state to take away.
* Differences are paired by question.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..evaluation.intervals import Resampled
from .answering import QuestionStates, Scored, answer_questions, score_answers
from .batches import Pairs
from .reader import Reader


def questions_with_past(pairs: Pairs) -> np.ndarray:
    return np.flatnonzero(pairs.counts > 1)


def state_use(
    reader: Reader,
    pairs: Pairs,
    own: Scored,
    kept: QuestionStates,
    *,
    rows: int,
    device: torch.device,
    longest: int,
    draws: int,
    seed: int,
    advance: Callable[[int], None] = lambda windows: None,
) -> dict[str, Any] | None:
    """EM, F1 and loss without a state and with another question's, each also as a difference: minus
    the value with the reader's own state. None if fewer than two questions have a past."""
    chosen = questions_with_past(pairs)
    if len(chosen) < 2:
        return None
    part = Pairs([pairs.pairs[number] for number in chosen], pairs.layout)
    other = _others(len(chosen), seed)
    resampled = Resampled(np.arange(len(chosen)), draws, seed)

    def read(state_of: Any) -> dict[str, Any]:
        answers = answer_questions(
            reader,
            part,
            rows=rows,
            device=device,
            longest=longest,
            state_of=state_of,
            advance=advance,
        )
        scored = score_answers(answers, part)
        return {
            name: {
                "value": float(getattr(scored, name).mean()),
                "above_own": resampled.mean(getattr(scored, name) - getattr(own, name)[chosen]),
            }
            for name in ("em", "f1", "nll")
        }

    own_states = read(lambda number, window: kept.before(int(chosen[number]), window))
    return {
        "questions": len(chosen),
        "own": {name: float(getattr(own, name)[chosen].mean()) for name in ("em", "f1", "nll")},
        # The difference in loss between reading again from the kept states and the first reading.
        "own_differs_from_first_reading": abs(own_states["nll"]["above_own"]["value"]),
        "zeroed": read(lambda number, window: None),
        "other": read(lambda number, window: kept.before(int(chosen[other[number]]), window)),
    }


def _others(count: int, seed: int) -> np.ndarray:
    """[count] for each question another one: its neighbour in a random circular order."""
    circle = np.random.default_rng(seed).permutation(count)
    following = np.empty(count, dtype=np.int64)
    following[circle] = np.roll(circle, 1)
    return following
