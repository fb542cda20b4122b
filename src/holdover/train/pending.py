"""A step's loss on its way from the device: nobody waits for it until the next step is under way."""

import torch
from torch import Tensor


class Pending:
    """What is to be logged of a step, once it has arrived."""

    def __init__(
        self,
        step: int,
        tokens: int,
        rates: tuple[float, float],
        loss: Tensor,
        norm: Tensor | None,
    ) -> None:
        self.step, self.tokens, self.rates = step, tokens, rates
        no_norm = torch.zeros_like(loss)
        self._values = torch.stack([loss, no_norm if norm is None else norm.to(loss.dtype)])
        self._arrived: torch.cuda.Event | None = None
        if self._values.is_cuda:
            # Into pinned memory and with an event: .item() would wait for all that was queued since.
            host = torch.empty(2, dtype=self._values.dtype, pin_memory=True)
            host.copy_(self._values, non_blocking=True)
            self._values, self._arrived = host, torch.cuda.Event()
            self._arrived.record()

    @property
    def is_here(self) -> bool:
        return self._arrived is None

    def read(self) -> tuple[float, float]:
        """Loss and norm of the gradient (0 where it was not asked for)."""
        if self._arrived is not None:
            self._arrived.synchronize()
        loss, norm = self._values.tolist()
        return loss, norm
