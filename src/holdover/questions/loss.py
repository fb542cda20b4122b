"""The loss of a batch's answers, and the answer that a reader gives."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .batches import QuestionBatch
from .question import KINDS
from .reader import ReaderOutput


def answer_nll(output: ReaderOutput, batch: QuestionBatch) -> Tensor:
    """[B] -log p(answer): -log p of its kind and, for a span, of any of its occurrences.

    Which occurrence the annotator meant is not known, so their probabilities are added. A span without
    an occurrence costs its kind alone, a question without an answer nothing.
    """
    known = batch.kinds >= 0
    kind = output.kind.gather(1, batch.kinds.clamp(min=0)[:, None])[:, 0]
    first, last = batch.spans.unbind(-1)  # [B, O]
    occurs = batch.occurs.any(1)
    # A row without an occurrence counts all entries and is ignored below: log 0 has no gradient.
    counted = batch.occurs | ~occurs[:, None]
    spans = output.start.gather(1, first) + output.end.gather(1, last)
    spans = spans.masked_fill(~counted, float("-inf")).logsumexp(1)
    return -torch.where(known, kind, 0.0) - torch.where(occurs, spans, 0.0)


@dataclass(frozen=True)
class BestAnswers:
    """The most probable answer of every row, as numbers."""

    kind: Tensor  # [B] index in KINDS
    first: Tensor  # [B] first token of the best span, whatever the kind
    last: Tensor  # [B] its last token
    logp: Tensor  # [B] log p of the answer: its kind and, for a span, its position


def best_answers(output: ReaderOutput, longest: int) -> BestAnswers:
    """The most probable kind, and the most probable span of at most `longest` tokens."""
    columns = output.start.shape[1]
    longest = min(longest, columns)
    ends = torch.nn.functional.pad(output.end, (0, longest - 1), value=float("-inf"))
    pairs = output.start[..., None] + ends.unfold(1, longest, 1)  # [B, N, longest]
    logp, index = pairs.flatten(1).max(1)
    first = index // longest
    kind_logp, kind = output.kind.max(1)
    span = kind == KINDS.index("span")
    logp = kind_logp + torch.where(span, logp, 0.0)
    return BestAnswers(kind, first, first + index % longest, logp)
