"""Result records: where a number comes from, written beside it."""

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Container
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ..storage import write_atomically

PACKAGES = ("holdover", "torch", "transformers", "tokenizers", "accelerate", "peft", "numpy")
# Folders of a checkout that hold what was found, and nothing that runs.
WRITTEN = ("results", "docs")


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """Command, commit, versions and device of this process (on a GPU, unless another is named)."""
    return {
        "command": _command(),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "device": device_name(device),
    }


def _command() -> str:
    """As it would be typed again."""
    program, *arguments = sys.argv
    name = Path(program).name
    words = ["holdover"] if name in ("holdover", "__main__.py") else ["python", name]
    if not Path(program).is_absolute() and words[0] == "python":
        words = ["python", program]
    return shlex.join([*words, *map(_without_machine_path, arguments)])


def device_name(device: torch.device | None = None) -> str:
    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        return torch.cuda.get_device_name()
    return f"CPU, {os.cpu_count()} cores"


def choose_device(name: str) -> torch.device:
    """auto, cpu or cuda."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda was asked for, and torch sees no GPU: give --device cpu.")
    return torch.device("cuda" if torch.cuda.is_available() and name != "cpu" else "cpu")


def make_folder(folder: Path, flag: str = "--output") -> None:
    """Make a folder and write to it, so that what cannot be written is known before the work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Of its own name: several processes may look at once.
        probe = folder / f".writable.{os.getpid()}"
        write_atomically(probe, b"")
        probe.unlink()
    except OSError as error:
        raise OSError(
            f"{flag} {folder} cannot be written to ({error.strerror}): give another folder."
        ) from error


def write_record(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())


def shown_name(given: str) -> str:
    """What something is called, not the place where this machine keeps it."""
    path = Path(given)
    if not path.is_absolute() and not path.exists():
        return given  # a name on the hub
    return path.name if path.name not in ("", "..") else path.resolve().name


def fresh_name(name: str, taken: Container[str]) -> str:
    """A name that no other curve or row has."""
    number, fresh = 2, name
    while fresh in taken:
        fresh, number = f"{name} ({number})", number + 1
    return fresh


def redact_paths(options: dict[str, Any]) -> dict[str, Any]:
    """Settings as they were given, with names for the files and folders of this machine."""
    places = (
        "data_dir",
        "cache_dir",
        "output",
        "model",
        "tokenizer",
        "data",
        "validation",
        "against",
    )

    def shown(value: Any) -> Any:
        return [shown_name(v) for v in value] if isinstance(value, list) else shown_name(value)

    return {
        key: shown(value) if key in places and value is not None else value
        for key, value in options.items()
    }


def _without_machine_path(argument: str) -> str:
    """A path out of this folder says where a machine keeps its files, which is nobody's business."""
    key, equals, value = argument.partition("=")
    if equals and _leads_out(value):
        return f"{key}={Path(value).name}"
    return Path(argument).name if _leads_out(argument) else argument


def _leads_out(argument: str) -> bool:
    return Path(argument).is_absolute() or Path(argument).parts[:1] == ("..",)


def _commit() -> str | None:
    # Machines that get a copy of the tree without its history are told by the environment.
    told = os.environ.get("HOLDOVER_COMMIT")
    if told:
        return told
    try:
        commit = _git("describe", "--always", "--abbrev=12", "--exclude=*")
        # Not what is written beside the code: records that runs replace, pages that are made of them.
        others = [f":(top,exclude){folder}" for folder in WRITTEN]
        changed = _git("diff", "--name-only", "HEAD", "--", ":(top)", *others)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _git(*words: str) -> str:
    call = ["git", *words]
    done = subprocess.run(
        call, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
