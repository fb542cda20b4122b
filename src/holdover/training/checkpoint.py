"""Checkpoints: everything a run needs to continue as if it had never stopped.

* A folder `checkpoint-N` is written under another name, synced to disk and renamed when it is
  complete. So a folder of that name is complete, whenever the process was killed.
* It is also a model: `RecurrentModel.from_pretrained` reads it, and it contains the tokenizer.
* Tensors are safetensors, the rest JSON. `best` is a link, replaced in one step.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..runs.models import BEST, CHECKPOINT, numbered
from ..state import State
from ..storage import CHECKPOINT as FORMAT
from ..storage import NewerFormatError, check_content, with_version
from .progress import TrainProgress

PARTIAL = ".partial-"
PROGRESS = FORMAT.file
OPTIMIZER = "optimizer.safetensors"
LOCK = ".lock"
# Bytes that must stay free on the disk.
MARGIN = 64 * 2**20


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a step."""

    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    carried: State | None
    progress: dict[str, Any]


class Checkpoints:
    """The checkpoints in one run's folder."""

    def __init__(self, folder: Path, keep: int, optimizer_bytes: int = 0) -> None:
        self.folder = folder
        self.keep = keep
        # The optimizer's later size: before the first step it holds nothing.
        self.optimizer_bytes = optimizer_bytes

    def paths(self) -> list[Path]:
        """Complete checkpoints, the newest last."""
        return numbered(self.folder)

    def save(self, step: int, save_model: Callable[[Path], None], point: Checkpoint) -> Path:
        """Write checkpoint-`step`; a failure leaves the earlier ones as they were."""
        target = self.folder / f"{CHECKPOINT}{step}"
        if target.exists():
            return target
        partial = self.folder / f"{PARTIAL}{target.name}"
        try:
            for left in self.folder.glob(f"{PARTIAL}*"):
                _remove(left)
            self._check_room()
            partial.mkdir()
            save_model(partial)
            save_file(_for_disk(point.optimizer), partial / OPTIMIZER)
            save_file(_for_disk(point.random), partial / "random.safetensors")
            if point.carried is not None:
                point.carried.save(partial / "carried.state")
            progress = with_version(FORMAT, point.progress)
            (partial / PROGRESS).write_text(json.dumps(progress, indent=2))
            for path in [*partial.iterdir(), partial]:
                _sync(path)
            partial.rename(target)
            _sync(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            earlier = self.paths()
            kept = "there is no earlier one"
            if earlier:
                kept = f"the last complete one is {earlier[-1].name}"
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())
            raise OSError(
                f"{target.name} could not be written to {self.folder} ({reason}); {kept}: make room or "
                "give another --output, and continue with --resume."
            ) from error
        return target

    def mark_best(self, step: int) -> None:
        if not (self.folder / f"{CHECKPOINT}{step}").is_dir():
            return
        link = self.folder / f"{PARTIAL}{BEST}"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{CHECKPOINT}{step}")
        os.replace(link, self.folder / BEST)

    def drop_old(self) -> None:
        """Remove all but the newest and the best."""
        best = (self.folder / BEST).resolve()
        for path in self.paths()[: -self.keep]:
            if path.resolve() != best:
                # Under its own name a folder must be complete, also while it is being removed.
                leaving = self.folder / f"{PARTIAL}{path.name}"
                path.rename(leaving)
                _remove(leaving)

    def load(self, path: Path) -> Checkpoint:
        known = [field.name for field in fields(TrainProgress)]
        try:
            # The version first: a newer format may have other files too.
            content = json.loads((path / PROGRESS).read_text())
            progress = check_content(FORMAT, content, path / PROGRESS, known)
            carried = path / "carried.state"
            return Checkpoint(
                optimizer=load_file(path / OPTIMIZER),
                random=load_file(path / "random.safetensors"),
                carried=State.load(carried) if carried.exists() else None,
                progress=progress,
            )
        except (OSError, SafetensorError, ValueError) as error:
            raise damaged(path, error) from error

    def _check_room(self) -> None:
        """Refuse to begin a checkpoint that the disk cannot hold, judged by the last one."""
        paths = self.paths()
        if paths:
            needed = self._size(paths[-1]) + MARGIN
            free = shutil.disk_usage(self.folder).free
            if free < needed:
                raise OSError(f"it needs {needed:,} bytes and the disk has {free:,} left")

    def check_room_for_run(self) -> None:
        """After the first checkpoint: check that the disk can hold all those of the run."""
        needed = self._size(self.paths()[-1]) * (self.keep + 1) + MARGIN
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise OSError(
                f"The disk of {self.folder} has {free:,} bytes left and the checkpoints of this run "
                f"will take {needed:,} more: make room, give another --output, or a smaller --keep."
            )

    def _size(self, checkpoint: Path) -> int:
        """Bytes of a checkpoint with the complete optimizer state."""
        sizes = {path.name: path.stat().st_size for path in checkpoint.iterdir()}
        known = sizes.pop(OPTIMIZER, 0)
        return sum(sizes.values()) + max(known, self.optimizer_bytes)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Refuse a second process in a run's folder; the lock ends with the process, however it ends."""
    with open(folder / LOCK, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OSError(
                f"Another process is training in {folder}: wait for it, or give another --output."
            ) from error
        yield


def damaged(checkpoint: Path, error: Exception) -> ValueError:
    if isinstance(error, NewerFormatError):
        return error
    reason = " ".join(str(error).split()).rstrip(".")
    return ValueError(
        f"{checkpoint.name} in {checkpoint.parent} is truncated or damaged ({reason}): remove that "
        "folder, and --resume continues from the one before it."
    )


def random_state() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        # The one device that this process uses.
        states["cuda.0"] = torch.cuda.get_rng_state()
    return states


def restore_random_state(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda.0" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda.0"])


def _for_disk(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
