"""Records of runs: one JSON file each, recognised by the settings that decided its outcome."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage import EXPERIMENT, VERSION_FIELD, check_version
from .definition import Run
from .experiment_file import LAYOUT

KIND = "experiment run"
# Every record has these: runs and reports need them.
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
    found: Mapping[str, Mapping[str, Any]]
    """By the name of the run."""

    def of(self, arm: str) -> list[Mapping[str, Any]]:
        """The records of an arm, in the order of seeds."""
        chosen = [record for record in self.found.values() if record["arm"] == arm]
        return sorted(chosen, key=lambda record: record["seed"])


def read_records(folder: Path) -> Records:
    records = {}
    for path in sorted(folder.glob("*.json")):
        if path.name != LAYOUT:
            record = read_json(path)
            check_version(EXPERIMENT, record.get(VERSION_FIELD, 0), path)
            if reason := _invalid(record):
                raise unreadable(path, reason)
            records[record["run"]] = record
    return Records(folder, records)


def _invalid(record: Mapping[str, Any]) -> str:
    """Why JSON is not a record of a run; empty if it is one."""
    if record.get("record") != KIND:
        return f"its 'record' is not {KIND!r}"
    for name, kind in NEEDED.items():
        if not isinstance(record.get(name), kind):
            return f"{name!r} is {'of the wrong type' if name in record else 'missing'}"
    for name, parts in PARTS.items():
        for part in parts:
            if part not in record[name]:
                return f"'{name}.{part}' is missing"
    if not all(isinstance(text, dict) and "source" in text for text in record["data"]):
        return "an entry of 'data' has no 'source'"
    return ""


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    # Bytes that are not text raise a ValueError, too.
    except (OSError, ValueError) as error:
        raise unreadable(path, str(error)) from error
    if not isinstance(content, dict):
        raise unreadable(path, "it is not a JSON object")
    return content


def unreadable(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} cannot be read as a record ({reason}): delete it and run its experiment again."
    )


def fingerprint(name: str, scale: str, run: Run) -> str:
    """A hash of everything that was chosen for a run."""
    chosen = {"experiment": name, "scale": scale, "run": run.name, "settings": run.settings}
    try:
        text = json.dumps(chosen, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The settings of the run {run.name} are not JSON ({error}): use numbers, strings, "
            "lists and dictionaries."
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_names(name: str, runs: Iterable[Run]) -> None:
    """Names are unique, and a run waits only for runs before it."""
    runs = list(runs)
    seen: set[str] = set()
    for run in runs:
        if run.name in seen:
            raise ValueError(
                f"{name} has two runs named {run.name}: give their arms different names."
            )
        missing = set(run.after) - seen
        if missing:
            raise ValueError(
                f"{name}: {run.name} waits for {', '.join(sorted(missing))}, which is not among the "
                "runs before it: list it first."
            )
        seen.add(run.name)
