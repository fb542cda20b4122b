"""Reader: an encoder with a carried state that answers a question over a context of many windows.

    s, e     = softmax over all tokens of the context, of all windows, of W h + b        start, end
    v        = max over windows of the vector of [CLS]                                    [k]
    kind     = softmax of V v + c                                                         span, yes, no
    p(i..j)  = p(span) s_i e_j

* Every token of the context is scored once: in an overlap, in the window in which more context
  surrounds it.
* The maximum over windows and the three kinds follow Yoshida, Ettinger and Gimpel. They do not say over
  how many windows they normalise starts and ends. Here a question has one distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from ..recurrent.model import RecurrentModel
from ..recurrent.step import OutputRequest
from ..state import State
from ..unrolling import Recompute, unroll
from ..windows import Window
from .batches import Layout, QuestionBatch
from .pairs import PairTokenizer
from .question import KINDS


@dataclass(frozen=True)
class ReaderOutput:
    """A reader's output for a batch of questions: log p everywhere, -inf for missing tokens."""

    start: Tensor  # [B, N]
    end: Tensor  # [B, N]
    kind: Tensor  # [B, 3]
    states: tuple[State, ...] = ()  # [W] the state after every window, if they are kept


class Heads(nn.Module):
    """Start, end and kind of an answer."""

    def __init__(self, width: int, deviation: float) -> None:
        super().__init__()
        self.span = nn.Linear(width, 2)
        self.kind = nn.Linear(width, len(KINDS))
        for head in (self.span, self.kind):
            nn.init.normal_(head.weight, std=deviation)
            nn.init.zeros_(head.bias)


class Reader(nn.Module):
    def __init__(self, encoder: RecurrentModel) -> None:
        super().__init__()
        self.encoder = encoder
        config = encoder.backbone.config
        self.heads = Heads(config.hidden_size, getattr(config, "initializer_range", None) or 0.02)

    def added_parameters(self) -> list[nn.Parameter]:
        """The weights that were not pretrained: those of the recurrence and of the heads."""
        return [*self.encoder.recurrence.parameters(), *self.heads.parameters()]

    def layout(self, tokenizer: PairTokenizer) -> Layout:
        """How the windows of this reader are cut."""
        settings, row = self.encoder.settings, self.encoder.spec
        return Layout(
            window=settings.window,
            overlap=settings.overlap,
            centred=not row.causal,
            padding=tokenizer.padding,
            types=tokenizer.gives_types and self._takes_types(),
        )

    def _takes_types(self) -> bool:
        base = self.encoder.backbone.base_model
        # RoBERTa takes token types and has only one; XLNet does not say how many, and takes any.
        kinds = getattr(base.config, "type_vocab_size", 2)
        return "token_type_ids" in signature(base.forward).parameters and kinds > 1

    def step(
        self, window: Window, state: State | None = None
    ) -> tuple[tuple[Tensor, Tensor], State]:
        """One window: [B, T, 2] scores of start and end, [B, k] its vector, and the next state."""
        output, state = self.encoder.step(window, state, OutputRequest("bare"))
        hidden = output["last_hidden_state"]
        return (self.heads.span(hidden).float(), self._vector(window, hidden)), state

    def _vector(self, window: Window, hidden: Tensor) -> Tensor:
        """[B, k] the vector of [CLS], the first position or (XLNet) the last."""
        if self.encoder.spec.sequence_vector == "first":
            return hidden[:, 0]
        if window.mask is None:
            return hidden[:, -1]
        last = window.mask.sum(1) - 1
        return hidden[torch.arange(len(last), device=hidden.device), last]

    def forward(
        self,
        batch: QuestionBatch,
        *,
        states: Sequence[State | None] | None = None,
        keep_states: bool = False,
    ) -> ReaderOutput:
        """Read a batch; states: the state to read each window with, instead of the carried one."""
        windows = batch.windows()
        if states is None:
            read = list(self._unrolled(windows))
        else:
            read = [self.step(w, state) for w, state in zip(windows, states, strict=True)]
        scores = torch.cat([span for (span, _), _ in read], 1)  # [B, W T, 2]
        scores = scores.gather(1, batch.order[..., None].expand(-1, -1, 2))  # [B, N, 2]
        scores = scores.masked_fill(~batch.context[..., None], float("-inf"))
        start, end = scores.log_softmax(1).unbind(-1)
        vectors = torch.stack([vector for (_, vector), _ in read])  # [W, B, k]
        vectors = vectors.masked_fill(~batch.reads[..., None], float("-inf"))
        kind = self.heads.kind(vectors.amax(0)).float().log_softmax(-1)
        kept = tuple(state for _, state in read) if keep_states else ()
        return ReaderOutput(start, end, kind, kept)

    def _unrolled(self, windows: list[Window]) -> Any:
        encoder = self.encoder
        mode: Any = encoder.recompute
        rule = Recompute(
            mode,
            encoder.settings.memory_budget,
            random=self.training,
            parameters=tuple(self.parameters()) if mode == "auto" else (),
        )
        return unroll(self.step, windows, horizon=encoder.horizon, recompute=rule)
