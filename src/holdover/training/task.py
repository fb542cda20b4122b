"""What the loop trains: a task brings batches, their loss and their measures."""

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor

from ..state import State


class BatchLike(Protocol):
    """A process's share of a batch; what it counts is counted in all processes."""

    @property
    def scored(self) -> int: ...  # targets

    @property
    def tokens(self) -> int: ...  # that are read, each counted once

    @property
    def idle(self) -> bool: ...  # it is read because all processes take part, and does not count


class Task(Protocol):
    """What is trained."""

    @property
    def decides(self) -> str:
        """The measure of `validate` whose smallest value makes a checkpoint the best."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[BatchLike]:
        """The batches of an epoch from number `start` on, on the device."""
        ...

    def length(self, epoch: int) -> int:
        """Batches of an epoch."""
        ...

    def tokens(self) -> int:
        """Tokens (or values) that are read in an epoch."""
        ...

    def loss(
        self, model: Any, batch: Any, carried: State | None, count: int
    ) -> tuple[Tensor, State | None]:
        """The batch's summed loss divided by `count`, and what the next batch continues from."""
        ...

    def validate(self, model: Any) -> dict[str, float]:
        """Measures on held-out data, the same in every process."""
        ...

    def alarm(self, model: Any, found: dict[str, float]) -> str | None:
        """What is plainly wrong with a model that is past its warm-up and validates so, if anything."""
        ...
