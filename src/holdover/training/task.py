"""The task protocol: batches, loss and validation, which an application gives to the loop."""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor

from ..state import State


class BatchLike(Protocol):
    """One process's share of a batch; the counts are those of all processes together."""

    @property
    def scored(self) -> int: ...  # targets

    @property
    def tokens(self) -> int: ...  # tokens that are read, each counted once

    @property
    def idle(self) -> bool: ...  # this process has no rows: it takes part, with a loss of zero


class Task(Protocol):
    """One thing to train."""

    @property
    def decides(self) -> str:
        """The measure of `validate` whose smallest value makes a checkpoint the best."""
        ...

    def record(self, model: Any) -> None:
        """Record the step as a CUDA graph, if the options ask for it."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[BatchLike]:
        """The batches of an epoch from number `start` on, on the device."""
        ...

    def length(self, epoch: int) -> int:
        """Number of batches of an epoch."""
        ...

    def tokens(self) -> int:
        """Number of tokens (or values) that an epoch reads."""
        ...

    def loss(
        self, model: Any, batch: Any, carried: State | None, count: int
    ) -> tuple[Tensor, State | None]:
        """The batch's summed loss divided by `count`, and the state for the next batch."""
        ...

    def validate(self, model: Any) -> dict[str, float]:
        """Measures on held-out data, the same in every process."""
        ...

    def alarm(self, model: Any, measures: dict[str, float]) -> str | None:
        """A warning if a model past its warm-up with these validation measures is plainly broken."""
        ...
