"""Result records, each with its provenance: command, commit, versions, device."""

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
from typing import TYPE_CHECKING, Any

from ..storage import write_atomically

if TYPE_CHECKING:
    import torch

PACKAGES = ("holdover", "torch", "transformers", "tokenizers", "accelerate", "peft", "numpy")
# Folders of a checkout that hold results and pages, but no code.
WRITTEN = ("results", "docs")


def provenance(device: "torch.device | None" = None) -> dict[str, Any]:
    """Command, commit, versions and device of this process (the GPU if there is one, by default)."""
    return {
        "command": _command(),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "device": device_name(device),
    }


def _command() -> str:
    """The command line of this process, as it would be typed again."""
    program, *arguments = sys.argv
    name = Path(program).name
    words = ["holdover"] if name in ("holdover", "__main__.py") else ["python", name]
    if not Path(program).is_absolute() and words[0] == "python":
        words = ["python", program]
    return shlex.join([*words, *map(_without_machine_path, arguments)])


def device_name(device: "torch.device | None" = None) -> str:
    import torch

    if torch.cuda.is_available() and (device is None or device.type == "cuda"):
        return torch.cuda.get_device_name()
    return f"CPU, {os.cpu_count()} cores"


def choose_device(name: str) -> "torch.device":
    """The device that `auto`, `cpu` or `cuda` stands for."""
    # Here, so that commands that only read files and records start without torch.
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda needs a GPU, and torch finds none: give --device cpu.")
    return torch.device("cuda" if torch.cuda.is_available() and name != "cpu" else "cpu")


def make_folder(folder: Path, flag: str = "--output") -> None:
    """Make a folder and write a test file to it, so that a failure comes before the work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Its own name: several processes may test the folder at the same time.
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
    """The name of a file, folder or model, without the path on this machine."""
    path = Path(given)
    if not path.is_absolute() and not path.exists():
        return given  # a name on the hub
    return path.name if path.name not in ("", "..") else path.resolve().name


def fresh_name(name: str, taken: Container[str]) -> str:
    """The name, with a number added if it is taken."""
    number, fresh = 2, name
    while fresh in taken:
        fresh, number = f"{name} ({number})", number + 1
    return fresh


def redact_paths(options: dict[str, Any]) -> dict[str, Any]:
    """Settings with the paths of this machine replaced by the names of files and folders."""
    paths = (
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
        key: shown(value) if key in paths and value is not None else value
        for key, value in options.items()
    }


def _without_machine_path(argument: str) -> str:
    """The argument; a path that leads out of the working folder is shortened to its name."""
    key, equals, value = argument.partition("=")
    if equals and _leads_out(value):
        return f"{key}={Path(value).name}"
    return Path(argument).name if _leads_out(argument) else argument


def _leads_out(argument: str) -> bool:
    return Path(argument).is_absolute() or Path(argument).parts[:1] == ("..",)


def _commit() -> str | None:
    # For machines that have a copy of the tree without the git history.
    commit = os.environ.get("HOLDOVER_COMMIT")
    if commit:
        return commit
    try:
        commit = _git("describe", "--always", "--abbrev=12", "--exclude=*")
        # Changes outside the code do not count: runs replace records, and pages are made from them.
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
