"""Question answering as a task of the loop: a row is a question, its loss that of its answer."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..runs.processes import Share
from ..state import State
from ..text.prefetch import prefetch
from .answering import answer_questions, score_answers
from .batches import Pairs, QuestionBatch
from .loss import answer_nll
from .options import QAOptions


class QuestionAnswering:
    def __init__(
        self,
        training: Pairs,
        validation: Pairs,
        options: QAOptions,
        device: torch.device,
        share: Share = Share(),
    ) -> None:
        self.training, self.validation = training, validation
        self.options, self.device, self.share = options, device, share
        # The loop keeps the checkpoint with the smallest value, and a larger F1 is better.
        self.decides = "loss" if options.best_by == "loss" else "f1_missed"

    def record(self, model: Any) -> None:
        """Steps of a reader are not recorded: every batch has another shape."""

    def batches(self, epoch: int, start: int) -> Iterator[QuestionBatch]:
        options = self.options
        batches = self.training.shuffled_batches(
            options.rows, options.seed, epoch, start, self.share
        )
        return prefetch(batches, self.device)

    def length(self, epoch: int) -> int:
        return self.training.count_batches(self.options.rows)

    def tokens(self) -> int:
        return self.training.tokens()

    def loss(
        self, model: Any, batch: QuestionBatch, carried: State | None, count: int
    ) -> tuple[Tensor, State | None]:
        """A batch reads its questions from their first window to their last: no state is left over."""
        return answer_nll(model(batch), batch).sum() / count, None

    def validate(self, model: Any) -> dict[str, float]:
        answers = answer_questions(
            model,
            self.validation,
            rows=self.options.rows,
            device=self.device,
            longest=self.options.longest_answer,
        )
        scored = score_answers(answers, self.validation)
        f1 = float(scored.f1.mean())
        measures = {"loss": float(scored.nll.mean()), "f1": f1, "em": float(scored.em.mean())}
        return measures if self.decides == "loss" else {**measures, self.decides: 1 - f1}

    def alarm(self, model: Any, measures: dict[str, float]) -> str | None:
        return None
