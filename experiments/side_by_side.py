"""Parallel runs of `holdover` on one device: how experiments start and continue them."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def train(
    folder: Path,
    settings: dict[str, Any],
    words: Sequence[str] = (),
    verb: Sequence[str] = ("train",),
) -> subprocess.Popen[bytes]:
    """Start a training with one of the verbs that train, or continue it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.yaml")
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    if (folder / "log.jsonl").exists():
        return holdover(*verb, "--resume", "--output", str(folder))
    return holdover(*verb, "--config", str(path), "--output", str(folder), *words)


def holdover(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "holdover", *words])


def wait(processes: list[subprocess.Popen[bytes]]) -> None:
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("A part of the experiment failed: see above; repeat the same command to continue.")


def last_checkpoint(run: Path) -> Path:
    """The last checkpoint of a run, not the best."""
    return max(run.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
