"""What a recurrent model returns."""

from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput

from ..state import State


@dataclass
class RecurrentOutput(ModelOutput):
    """loss: mean over all scored targets of all windows; state: what the next call continues from.

    The rest is joined over windows, each position once: logits (token heads [B, N, V], sequence heads
    [B, labels]), start_logits and end_logits [B, N], last_hidden_state [B, N, k] (bare models),
    hidden_states (L + 1) x [B, N, k] when asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    state: State | None = None
