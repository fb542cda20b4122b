"""A step's loss on its way from the device: nobody waits for it until the next step is under way."""

from collections.abc import Sequence

import torch
from torch import Tensor


class DeferredMetrics:
    """What is to be logged of a step, once it has arrived."""

    def __init__(
        self,
        step: int,
        tokens: int,
        rates: tuple[float, float],
        loss: Tensor,
        norm: Tensor | None,
        told: Sequence[Tensor] | None = None,
    ) -> None:
        """told: numbers on which several processes agreed together with the loss."""
        self.step, self.tokens, self.rates = step, tokens, rates
        no_norm = torch.zeros_like(loss)
        norm = no_norm if norm is None else norm.to(loss.dtype)
        self._values = torch.stack([loss, norm, *(told or ())])
        self._arrived: torch.cuda.Event | None = None
        if self._values.is_cuda:
            # Into pinned memory and with an event: .item() would wait for all that was queued since.
            host = torch.empty(len(self._values), dtype=self._values.dtype, pin_memory=True)
            host.copy_(self._values, non_blocking=True)
            self._values, self._arrived = host, torch.cuda.Event()
            self._arrived.record()

    @property
    def is_here(self) -> bool:
        return self._arrived is None

    def read(self) -> list[float]:
        """Loss, norm of the gradient (0 where it was not asked for), and what was told with them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values.tolist()
