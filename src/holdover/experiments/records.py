"""Records of runs: one JSON file each, found again by what decided its outcome."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage import EXPERIMENT, VERSION_FIELD, check_version
from .definition import Run
from .layout_file import LAYOUT

KIND = "experiment run"
# What every record has, for a run to be found again and for a report to be made of it.
NEEDED: Mapping[str, type | tuple[type, ...]] = {
    "run": str,
    "arm": str,
    "seed": int,
    "fingerprint": str,
    "measures": dict,
    "curves": dict,
    "notes": list,
    "data": list,
    "seconds": (int, float),
    "peak_memory": dict,
    "provenance": dict,
}
PARTS = {
    "peak_memory": ("bytes", "kind"),
    "provenance": ("commit", "device", "date", "versions", "command"),
}


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
            check_version(EXPERIMENT, record.get(VERSION_FIELD, 0), path)
            if wrong := _wrong(record):
                raise unreadable(path, wrong)
            found[record["run"]] = record
    return Records(folder, found)


def _wrong(record: Mapping[str, Any]) -> str:
    """Why something is no record of a run."""
    if record.get("record") != KIND:
        return f"'record' is not {KIND!r} in it"
    for name, kind in NEEDED.items():
        if not isinstance(record.get(name), kind):
            return f"{name!r} is {'of the wrong kind' if name in record else 'missing'}"
    for name, parts in PARTS.items():
        for part in parts:
            if part not in record[name]:
                return f"'{name}.{part}' is missing"
    if not all(isinstance(text, dict) and "source" in text for text in record["data"]):
        return "'data' names no source"
    return ""


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    # Of bytes that are no text, too.
    except (OSError, ValueError) as error:
        raise unreadable(path, str(error)) from error
    if not isinstance(found, dict):
        raise unreadable(path, "it is no JSON object")
    return found


def unreadable(path: Path, why: str) -> ValueError:
    return ValueError(
        f"{path} cannot be read as a record ({why}): delete it, and run its experiment again."
    )


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
