"""No state: every window is read alone. The plain twin that a comparison needs."""

import torch
from torch import Tensor

from .base import Carry, CarryInputs, StepTrace, Tensors


class NoCarry(Carry):
    def read(self, tensors: Tensors | None, present: Tensor | None, batch: int) -> CarryInputs:
        return CarryInputs()

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        return {"nothing": torch.zeros(trace.batch, 0, device=trace.device)}
