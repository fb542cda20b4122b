"""What a batch's answers cost, and which answer a reader gives."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .batches import QuestionBatch
from .question import KINDS
from .reader import ReaderOutput


def answer_nll(said: ReaderOutput, batch: QuestionBatch) -> Tensor:
    """[B] -log p(answer): of its kind, and of a span at any of the places where the answer stands.

    Which of them the annotator meant is not known, so their probabilities are added. A span that stands
    nowhere costs its kind alone, a question without an answer nothing.
    """
    known = batch.kinds >= 0
    kind = said.kind.gather(1, batch.kinds.clamp(min=0)[:, None])[:, 0]
    first, last = batch.spans.unbind(-1)  # [B, O]
    there = batch.occurs.any(1)
    # Where nothing occurs there is nothing to add, and log 0 has no gradient.
    counted = batch.occurs | ~there[:, None]
    places = said.start.gather(1, first) + said.end.gather(1, last)
    places = places.masked_fill(~counted, float("-inf")).logsumexp(1)
    return -torch.where(known, kind, 0.0) - torch.where(there, places, 0.0)


@dataclass(frozen=True)
class Best:
    """The answer of every row, as numbers."""

    kind: Tensor  # [B] number in KINDS
    first: Tensor  # [B] first token of the best span, whatever the kind
    last: Tensor  # [B] its last token
    logp: Tensor  # [B] of the answer: its kind and, of a span, its place


def best_answers(said: ReaderOutput, longest: int) -> Best:
    """The most probable kind; of spans the most probable one of at most `longest` tokens."""
    columns = said.start.shape[1]
    longest = min(longest, columns)
    ends = torch.nn.functional.pad(said.end, (0, longest - 1), value=float("-inf"))
    pairs = said.start[..., None] + ends.unfold(1, longest, 1)  # [B, N, longest]
    logp, place = pairs.flatten(1).max(1)
    first = place // longest
    kind_logp, kind = said.kind.max(1)
    span = kind == KINDS.index("span")
    return Best(kind, first, first + place % longest, kind_logp + torch.where(span, logp, 0.0))
