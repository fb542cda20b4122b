"""The log of a run: one JSON line per step and per validation; trackers on request.

* A resumed run drops the lines after its checkpoint: the log reads as if nothing had happened.
* Numbers on a GPU are logged one step late, so that nobody waits for them (`DeferredMetrics`).
"""

import importlib.util
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..runs.processes import is_first
from ..storage import write_atomically

LOG = "log.jsonl"
# The package that each tracker needs.
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a last line that a kill cut off is left out."""
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    for text in path.read_text().splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            break
        if isinstance(line, dict):
            lines.append(line)
    return lines


class Log:
    """The log file; with several processes only rank 0 writes it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self._file: Any = None
        self._is_mine = is_first()

    def continue_from(self, step: int) -> None:
        """Remove the lines after a step."""
        if not self._is_mine:
            return
        kept = [line for line in read_log(self.path) if line["step"] <= step]
        with explain_write_errors(self.path):
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def write(self, **values: Any) -> None:
        if not self._is_mine:
            return
        # JSON has no NaN and no infinity.
        values = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        with explain_write_errors(self.path):
            if self._file is None:
                self._file = open(self.path, "a")  # noqa: SIM115 - open as long as the run
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Before a checkpoint: its lines must reach the disk before the checkpoint does."""
        if self._file is not None:
            with explain_write_errors(self.path):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            # Every line was flushed: a line that cannot be written has raised an error before.
            with suppress(OSError):
                self._file.close()
            self._file = None


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn the error of a full or missing disk into one sentence."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} could not be written ({error.strerror or error}): make room or give another "
            "--output, and continue with --resume."
        ) from error


def check_trackers(names: tuple[str, ...]) -> None:
    for name in names:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise ValueError(
                f"--report-to {name} needs the package {PACKAGES[name]}, which is not installed: "
                f"pip install {PACKAGES[name]}, or leave it out (log.jsonl is always written)."
            )


class DeferredMetrics:
    """A step's metrics, copied from the device while the next step already runs."""

    def __init__(
        self,
        step: int,
        tokens: int,
        rates: tuple[float, float],
        loss: Tensor,
        norm: Tensor | None,
        agreed: Sequence[Tensor] = (),
    ) -> None:
        """agreed: numbers that several processes summed together with the loss."""
        self.step, self.tokens, self.rates = step, tokens, rates
        no_norm = torch.zeros_like(loss)
        norm = no_norm if norm is None else norm.to(loss.dtype)
        self._values = torch.stack([loss, norm, *agreed])
        self._arrived: torch.cuda.Event | None = None
        if self._values.is_cuda:
            # Into pinned memory with an event: .item() would wait for all kernels queued since.
            host = torch.empty(len(self._values), dtype=self._values.dtype, pin_memory=True)
            host.copy_(self._values, non_blocking=True)
            self._values, self._arrived = host, torch.cuda.Event()
            self._arrived.record()

    @property
    def is_here(self) -> bool:
        return self._arrived is None

    def read(self) -> list[float]:
        """Loss, gradient norm (0 without one), then the numbers in `agreed`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._values.tolist()
