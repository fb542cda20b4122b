"""Language modelling as a task of the loop: contiguous rows of windows, next-token loss."""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..evaluation.collapse import check_collapse, collapse_sentence
from ..evaluation.scoring import score
from ..runs.processes import Share, all_gather_objects
from ..state import State
from ..text.prefetch import prefetch
from ..text.tokens import Tokens
from ..text.window_loader import Batch, Walk, training_rows, with_resets
from ..windows import Window
from .options import TrainOptions
from .replay import ReplayedSegments


class LanguageModelling:
    decides = "loss"

    def __init__(
        self,
        training: Tokens,
        validation: Tokens,
        options: TrainOptions,
        device: torch.device,
        share: Share = Share(),
    ) -> None:
        self.training = training
        self.validation = validation
        self.options = options
        self.device = device
        self.share = share
        self.replayed: ReplayedSegments | None = None
        # Two epochs are kept: the current one, and the first, from which the number of steps follows.
        self.walk = lru_cache(maxsize=2)(self._walk)

    def _walk(self, epoch: int) -> Walk:
        options, recurrence = self.options, self.options.recurrence
        rows = training_rows(self.training, options.rows, options.seed, epoch)
        if options.reset_every is not None:
            rows = with_resets(rows, options.reset_every, recurrence.window, recurrence.overlap)
        return Walk(
            self.training,
            rows,
            recurrence.window,
            recurrence.overlap,
            full_width=options.compile or options.replay,
        )

    def record(self, model: Any) -> None:
        """Record a step if --replay is given. No batch is prefetched yet: no other thread may
        allocate memory on the device meanwhile."""
        if not self.options.replay:
            return
        # Any tokens will do: the record holds the kernels, not the values.
        shape = (self.options.windows, self.options.rows, self.options.recurrence.window)
        ids = torch.arange(math.prod(shape), device=self.device).view(shape) % model.vocabulary
        windows = [Window(part, targets=part) for part in ids]
        # Without dropout, so that the run draws the same random numbers as one without a record.
        model.eval()
        with torch.no_grad(), model.uncompiled():
            state = model(windows=windows).state
        ends = self.training.documents > 1 or self.options.reset_every is not None
        self.replayed = ReplayedSegments(model, windows, state.detach(), ends=ends)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        batches = self.walk(epoch).batches(self.options.windows, start, self.share)
        return prefetch(batches, self.device)

    def length(self, epoch: int) -> int:
        return -(-len(self.walk(epoch)) // self.options.windows)

    def tokens(self) -> int:
        return len(self.training) - self.training.documents

    def loss(
        self, model: Any, batch: Batch, carried: State | None, count: int
    ) -> tuple[Tensor, State | None]:
        if self.replayed is not None:
            return self.replayed(batch.windows(), carried, count)
        output = model(windows=batch.windows(), state=carried, num_items_in_batch=count)
        return output.loss, output.state

    def validate(self, model: Any) -> dict[str, float]:
        sums = all_gather_objects(lambda: self._own_sums(model))
        loss = sum(total for total, _ in sums) / sum(count for _, count in sums)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}

    def _own_sums(self, model: Any) -> tuple[float, int]:
        """Summed loss and number of targets of this process's share."""
        # Compiled without gradients, a plain model's losses have been wrong (docs/training.md).
        with model.uncompiled():
            scores = score(
                model,
                self.validation,
                rows=self.options.rows,
                reset_every=self.options.reset_every,
                device=self.device,
                share=self.share,
            )
        return scores.total(), int(scores.scored.sum())

    def alarm(self, model: Any, measures: dict[str, float]) -> str | None:
        collapse = check_collapse(model, self.validation, measures["loss"], self.device)
        return collapse_sentence(collapse) if collapse and collapse["collapsed"] else None
