"""Several processes that train one model: which rows are whose, and how they communicate.

* In a single process, every function here does its work locally and sends nothing.
* Python objects are sent over a gloo group with a long timeout: one process downloads and encodes while
  the others wait. Tensors of a step are summed in the default group.
* A failure is raised in the process where it happens; the others raise FailedElsewhereError silently.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch import Tensor
from torch import distributed as dist

from .launch import FailedElsewhereError, started_processes

T = TypeVar("T")

# A corpus may take hours to encode; a lost process ends the wait at once.
LONGEST_WAIT = timedelta(days=2)


@dataclass(frozen=True)
class Share:
    """The part of a batch that belongs to one process."""

    number: int = 0
    of: int = 1

    def rows(self, count: int) -> range:
        """Its rows of a batch with `count` rows: consecutive, equal shares up to one row."""
        return range(count * self.number // self.of, count * (self.number + 1) // self.of)

    def rows_or_idle(self, count: int) -> tuple[range, bool]:
        """The same for batches that may have fewer rows than there are processes.

        All processes must take part in every step. One without a row reads the first row and is idle:
        its results do not count.
        """
        own = self.rows(count)
        return (own, False) if own else (range(1), True)

    def dealt(self, items: Sequence[T]) -> Sequence[T]:
        """Its part of items in order of size: every N-th of N processes, so that sizes are similar."""
        return items[self.number :: self.of]


class _Talk:
    """The group that sends objects; it lives as long as the process group."""

    group: Any = None


def join(cpu: bool) -> torch.device:
    """Join the other processes, each on its own device; a single process only gets its device."""
    if started_processes() > 1 and _Talk.group is None:
        # accelerate reads the environment of every launcher.
        device = PartialState(cpu=cpu).device
        assert device is not None
        open_talk()
        return torch.device(device)
    return torch.device("cpu" if cpu else "cuda")


def open_talk() -> None:
    if _Talk.group is None:
        _Talk.group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)


def close_talk() -> None:
    """Leave the process group."""
    if _Talk.group is not None:
        _Talk.group = None
        dist.destroy_process_group()


def own_share() -> Share:
    if _Talk.group is None:
        return Share()
    return Share(dist.get_rank(), dist.get_world_size())


def is_first() -> bool:
    return own_share().number == 0


def all_gather_objects(work: Callable[[], T]) -> list[T]:
    """Every process's result, in order, sent to all; if one fails, all end."""
    if _Talk.group is None:
        return [work()]
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    results: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(results, (result, failure is not None), group=_Talk.group)
    if failure is not None:
        raise failure
    if any(failed for _, failed in results):
        raise FailedElsewhereError
    return [result for result, _ in results]


def rank0_broadcast(work: Callable[[], T]) -> T:
    """The first process's result, sent to all; the others only wait."""
    if _Talk.group is None:
        return work()
    sent: list[Any] = [None, False]
    failure = None
    if is_first():
        try:
            sent = [work(), False]
        except Exception as error:
            sent, failure = [None, True], error
    dist.broadcast_object_list(sent, src=0, group=_Talk.group)
    if failure is not None:
        raise failure
    result, failed = sent
    if failed:
        raise FailedElsewhereError
    return result


def rank0_first(work: Callable[[], T]) -> T:
    """Do the work in every process, the first one before the others, which then reuse its files."""
    own: list[T] = []
    rank0_broadcast(lambda: own.append(work()))
    return own[0] if own else work()


def summed(values: Tensor) -> Tensor:
    """The sum over all processes; a GPU does not wait for it."""
    if own_share().of > 1:
        dist.all_reduce(values)
    return values


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error of torch means that another process is gone."""
    message = str(error)
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and ("gloo" in message or "Connection closed by peer" in message)
    )


def seed_rank(seed: int, step: int) -> None:
    """Give every process its own random numbers.

    The first continues as a single process would. The others are seeded anew at every step, so that
    their random state need not be saved.
    """
    number = own_share().number
    if number:
        digest = hashlib.sha256(f"{seed} {step} {number}".encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "big"))
