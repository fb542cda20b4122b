"""No state: every window is read alone. The plain twin that a comparison needs."""

import torch
from torch import Tensor

from .carry import Carry, Reading, Tensors, Trace


class NoCarry(Carry):
    def read(self, tensors: Tensors | None, present: Tensor | None, batch: int) -> Reading:
        return Reading()

    def write(self, trace: Trace) -> dict[str, Tensor]:
        return {"nothing": torch.zeros(trace.batch, 0, device=trace.device)}
