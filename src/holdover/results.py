"""Result records: where a number comes from, written beside it."""

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from .state import write_atomically

PACKAGES = ("holdover", "torch", "transformers", "tokenizers", "accelerate", "peft", "numpy")


def provenance(device: torch.device | None = None) -> dict[str, Any]:
    """Command, commit, versions and device of this process (on a GPU, unless another is named)."""
    return {
        "command": shlex.join(["python", *map(_without_machine_path, sys.argv)]),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "device": device_name(device),
    }


def device_name(device: torch.device | None = None) -> str:
    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        return torch.cuda.get_device_name()
    return f"CPU, {os.cpu_count()} cores"


def write_record(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(record, indent=2) + "\n").encode())


def _without_machine_path(argument: str) -> str:
    """An absolute path says where a machine keeps its files, which is nobody's business."""
    key, equals, value = argument.partition("=")
    if equals and Path(value).is_absolute():
        return f"{key}={Path(value).name}"
    return Path(argument).name if Path(argument).is_absolute() else argument


def _commit() -> str | None:
    # Machines that get a copy of the tree without its history are told by the environment.
    told = os.environ.get("HOLDOVER_COMMIT")
    if told:
        return told
    try:
        here = Path(__file__).parent
        call = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        return subprocess.run(
            call, cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
