"""No state: every window is read alone. The plain twin that a comparison needs."""

import torch
from torch import Tensor

from .base import Carry, CarryInputs, StepTrace


class NoCarry(Carry):
    carries_state = False
    carries_recurrent_layers = True  # without a state, recurrent layers begin anew in every window

    def state_shapes(self, window: int) -> dict[str, tuple[int, ...]]:
        return {"nothing": (0,)}

    def read(self, trace: StepTrace) -> CarryInputs:
        return CarryInputs()

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        return {"nothing": torch.zeros(trace.batch, 0, device=trace.device)}
