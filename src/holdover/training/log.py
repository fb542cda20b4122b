"""The log of a run: one JSON line a step and a validation, always; trackers on request.

* A continued run drops the lines behind its checkpoint: the log reads as if nothing had happened.
"""

import importlib.util
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..runs.processes import is_first
from ..storage import write_atomically

LOG = "log.jsonl"
# What each tracker is called on the package index.
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


def read_log(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a last one that a kill cut off is left out."""
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    for line in path.read_text().splitlines():
        try:
            found = json.loads(line)
        except json.JSONDecodeError:
            break
        if isinstance(found, dict):
            lines.append(found)
    return lines


class Log:
    """Written by the first of several processes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG
        self._file: Any = None
        self._is_mine = is_first()

    def continue_from(self, step: int) -> None:
        """Forget what was logged after a step."""
        if not self._is_mine:
            return
        kept = [line for line in read_log(self.path) if line["step"] <= step]
        with writing(self.path):
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def write(self, **values: Any) -> None:
        if not self._is_mine:
            return
        # JSON has no word for what is no number.
        values = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        with writing(self.path):
            if self._file is None:
                self._file = open(self.path, "a")  # noqa: SIM115 - open as long as the run
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Before a checkpoint: its lines must not be younger than it."""
        if self._file is not None:
            with writing(self.path):
                os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            # Every line was flushed: what cannot be written now has been complained about.
            with suppress(OSError):
                self._file.close()
            self._file = None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that is full or gone, as one sentence."""
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
                f"report_to={name} needs the package {PACKAGES[name]}, which is not installed: "
                f"pip install {PACKAGES[name]}, or leave it out (log.jsonl is always written)."
            )
