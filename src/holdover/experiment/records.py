"""Records of runs: one JSON file each, found again by what decided its outcome."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .definition import Run
from .layout_file import LAYOUT

KIND = "experiment run"


@dataclass(frozen=True)
class Records:
    """All records of one experiment at one scale."""

    folder: Path
    found: Mapping[str, Mapping[str, Any]]  # by the name of the run

    def of(self, arm: str) -> list[Mapping[str, Any]]:
        """Those of an arm, by seed."""
        chosen = [record for record in self.found.values() if record["arm"] == arm]
        return sorted(chosen, key=lambda record: record["seed"])


def read_records(folder: Path) -> Records:
    found = {}
    for path in sorted(folder.glob("*.json")):
        if path.name != LAYOUT:
            record = read_json(path)
            if record.get("record") == KIND:
                found[record["run"]] = record
    return Records(folder, found)


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read as a record ({error}): delete it, and run its experiment again."
        ) from error


def fingerprint(name: str, scale: str, run: Run) -> str:
    """Of everything that was chosen for a run."""
    chosen = {"experiment": name, "scale": scale, "run": run.name, "settings": run.settings}
    try:
        text = json.dumps(chosen, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The settings of the run {run.name} are not JSON ({error}): give numbers, words, lists "
            "and dictionaries."
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_names(name: str, runs: Iterable[Run]) -> None:
    """A run is known by its name, and can only wait for others."""
    runs = list(runs)
    seen: set[str] = set()
    for run in runs:
        if run.name in seen:
            raise ValueError(f"{name} has two runs of the name {run.name}: name their arms apart.")
        missing = set(run.after) - seen
        if missing:
            raise ValueError(
                f"{name}: {run.name} comes after {', '.join(sorted(missing))}, which is not among the "
                "runs before it: list them first."
            )
        seen.add(run.name)
