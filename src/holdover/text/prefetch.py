"""Batches that a background thread prepares before they are needed."""

import threading
from collections.abc import Generator, Iterable
from queue import Empty, Full, Queue
from typing import Any, Protocol, TypeVar

import torch

# Seconds after which a waiting thread checks whether it should stop.
PATIENCE = 0.2


class Movable(Protocol):
    """A batch of any kind."""

    def pinned(self) -> Any: ...

    def to(self, device: torch.device) -> Any: ...


Batch = TypeVar("Batch", bound=Movable)


def prefetch(batches: Iterable[Batch], device: torch.device, depth: int = 3) -> Generator[Batch]:
    """The batches on a device. The next `depth` are prepared while one is used."""
    queue: Queue[Any] = Queue(maxsize=depth)
    stopped = threading.Event()

    def put(item: Any) -> None:
        while not stopped.is_set():
            try:
                queue.put(item, timeout=PATIENCE)
                return
            except Full:
                continue

    def work() -> None:
        try:
            for batch in batches:
                put(batch.pinned() if device.type == "cuda" else batch)
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # raised again where the batch was expected
            put(error)

    thread = threading.Thread(target=work, name="holdover-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = queue.get(timeout=PATIENCE)
            except Empty:
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item.to(device)
    finally:
        stopped.set()
        thread.join()
