"""Several processes that train one model: what is whose, and how they agree.

* Alone, everything here is what it is for one process, and nothing is sent.
* Python objects are told over a group of their own (gloo) that waits for long: one process downloads and
  encodes while the others wait for it. Tensors of a step are summed in the default group.
* A failure is raised by the process that met it; the others raise FailedElsewhereError, and are silent.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from torch import Tensor
from torch import distributed as dist

Found = TypeVar("Found")

# A corpus may take hours to encode; a process that is lost ends the waiting at once.
LONGEST_WAIT = timedelta(days=2)


class FailedElsewhereError(Exception):
    """Another process cannot go on, and has said why."""


@dataclass(frozen=True)
class Share:
    """The part of one process in what all of them read."""

    number: int = 0
    of: int = 1

    def rows(self, count: int) -> range:
        """Its part of `count` rows in a batch: consecutive, and as many as others' give or take one."""
        return range(count * self.number // self.of, count * (self.number + 1) // self.of)

    def rows_or_idle(self, count: int) -> tuple[range, bool]:
        """The same where a batch may have fewer rows than there are processes: one without a row reads
        the first, as all take part in every step, and is idle: what it says of it does not count."""
        own = self.rows(count)
        return (own, False) if own else (range(1), True)

    def dealt(self, items: Sequence[Found]) -> Sequence[Found]:
        """Its part of items in order of size: every so many-th, so that all get like sizes."""
        return items[self.number :: self.of]


class _Talk:
    """The group over which objects are told; it lives as long as the process group."""

    group: Any = None


def started_processes() -> int:
    """How many processes a launcher says it has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def join(cpu: bool) -> torch.device:
    """Meet the other processes that were started, on a device of one's own; alone, where it is."""
    if started_processes() > 1 and _Talk.group is None:
        # A launcher's environment, whichever it is, is accelerate's to read.
        device = PartialState(cpu=cpu).device
        assert device is not None
        open_talk()
        return torch.device(device)
    return torch.device("cpu" if cpu else "cuda")


def open_talk() -> None:
    if _Talk.group is None:
        _Talk.group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)


def close_talk() -> None:
    """Leave the other processes behind in good order."""
    if _Talk.group is not None:
        _Talk.group = None
        dist.destroy_process_group()


def own_share() -> Share:
    if _Talk.group is None:
        return Share()
    return Share(dist.get_rank(), dist.get_world_size())


def is_first() -> bool:
    return own_share().number == 0


def all_gather_objects(work: Callable[[], Found]) -> list[Found]:
    """What every process finds, in their order, told to all; where one fails, all end."""
    if _Talk.group is None:
        return [work()]
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (result, failure is not None), group=_Talk.group)
    if failure is not None:
        raise failure
    if any(failed for _, failed in told):
        raise FailedElsewhereError
    return [found for found, _ in told]


def rank0_broadcast(work: Callable[[], Found]) -> Found:
    """What the first process finds, told to all; the others only wait."""
    if _Talk.group is None:
        return work()
    told: list[Any] = [None, False]
    failure = None
    if is_first():
        try:
            told = [work(), False]
        except Exception as error:
            told, failure = [None, True], error
    dist.broadcast_object_list(told, src=0, group=_Talk.group)
    if failure is not None:
        raise failure
    if told[1]:
        raise FailedElsewhereError
    return told[0]


def rank0_first(work: Callable[[], Found]) -> Found:
    """Done by every process, by the first one alone at first: others find what it has left on disk."""
    mine: list[Found] = []
    rank0_broadcast(lambda: mine.append(work()))
    return mine[0] if mine else work()


def summed(values: Tensor) -> Tensor:
    """The sum over all processes, without waiting for it where the device need not."""
    if own_share().of > 1:
        dist.all_reduce(values)
    return values


def is_lost_peer(error: BaseException) -> bool:
    """Whether an error of torch says that another process is gone."""
    told = str(error)
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in told or "Connection closed by peer" in told)
    )


def seed_rank(seed: int, step: int) -> None:
    """Draw other random numbers than the other processes: the first goes on as if it were alone, the
    others begin anew with every step, so that nothing of theirs needs saving."""
    number = own_share().number
    if number:
        digest = hashlib.sha256(f"{seed} {step} {number}".encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "big"))
