"""An experiment on disk: the Python file that defines it, and its layout as JSON.

The layout lies next to the records it names, so a report needs no experiment file.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .definition import (
    SCALES,
    Answer,
    Cell,
    Claim,
    Expectation,
    Experiment,
    Figure,
    Layout,
    Published,
    Samples,
    Series,
    Table,
    Threats,
    Value,
)

LAYOUT = "experiment.json"


class _UncachedLoader(SourceFileLoader):
    """Compiles the file every time.

    Python's cache recognises a changed file by its size and the second of its change, which may both
    be the same.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _defines_experiment(path: Path) -> bool:
    """Whether a file is an experiment, without running it: shared modules lie in the same folder."""
    try:
        return re.search(r"^EXPERIMENT\b", path.read_text(encoding="utf-8"), re.M) is not None
    except (OSError, UnicodeDecodeError):
        return False


def open_experiment(path: Path) -> tuple[str, Experiment]:
    """The name of the file, which is the experiment's name, and the experiment."""
    if not path.is_file():
        near = [str(file) for file in sorted(path.parent.glob("*.py")) if _defines_experiment(file)]
        hint = f"there is {', '.join(near)}" if near else "give the path of a Python file"
        raise FileNotFoundError(f"There is no experiment at {path}: {hint}.")
    if path.suffix != ".py":
        raise ValueError(f"{path} is not Python: give an experiment's file, which ends with .py.")
    loader = _UncachedLoader(f"experiment_{path.stem}", str(path))
    module = ModuleType(loader.name)
    module.__file__ = str(path)
    # Dataclasses look up their module, and the file may import others from its folder.
    sys.modules[loader.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        loader.exec_module(module)
    # A user's file may raise anything.
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}): it has to run as Python alone."
        ) from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
    experiment = getattr(module, "EXPERIMENT", None)
    if not isinstance(experiment, Experiment):
        raise ValueError(
            f"{path} defines no experiment: give it EXPERIMENT = holdover.experiments.Experiment(...)."
        )
    unknown = set(experiment.seeds) - set(SCALES)
    if unknown:
        raise ValueError(
            f"{path} has seeds for {', '.join(unknown)}: use the scales {', '.join(SCALES)}."
        )
    return path.stem, experiment


def to_json(name: str, scale: str, experiment: Experiment) -> dict[str, Any]:
    return {
        "record": "experiment",
        "experiment": name,
        "scale": scale,
        "title": experiment.title,
        "question": experiment.question,
        "source": experiment.source,
        "planned": _planned(scale, experiment),
        "place": experiment.place,
        **asdict(experiment.layout(scale)),
    }


def _planned(scale: str, experiment: Experiment) -> Mapping[str, int]:
    """The number of runs of every arm; empty if the experiment lists no seeds for the scale."""
    seeds = experiment.seeds.get(scale)
    return Counter(run.arm for run in experiment.runs(scale, seeds)) if seeds else {}


def from_json(stored: dict[str, Any]) -> Layout:
    return Layout(
        done=stored.get("done", ""),
        answers=[
            Answer(answer["text"], [Value(**value) for value in answer["values"]])
            for answer in stored.get("answers", ())
        ],
        claims=[_claim(claim) for claim in stored["claims"]],
        tables=[
            Table(**{**table, "rows": [[_cell(cell) for cell in row] for row in table["rows"]]})
            for table in stored["tables"]
        ],
        figures=[
            Figure(**{**figure, "series": [_series(series) for series in figure["series"]]})
            for figure in stored["figures"]
        ],
        samples=[Samples(**samples) for samples in stored["samples"]],
        threats=Threats(**stored["threats"]),
    )


def _claim(stored: dict[str, Any]) -> Claim:
    rests_on = _expectation(stored["rests_on"]) if stored.get("rests_on") else None
    expects = [_expectation(one) for one in stored["expects"]]
    return Claim(**{**stored, "expects": expects, "rests_on": rests_on})


def _expectation(stored: dict[str, Any]) -> Expectation:
    return Expectation(**{**stored, "value": Value(**stored["value"])})


def _cell(stored: Any) -> Cell:
    if isinstance(stored, str):
        return stored
    return Published(**stored) if "printed" in stored else Value(**stored)


def _series(stored: dict[str, Any]) -> Series:
    points = [(Value(**x) if isinstance(x, dict) else x, Value(**y)) for x, y in stored["points"]]
    curve = None if stored["curve"] is None else tuple(stored["curve"])
    return Series(**{**stored, "points": points, "curve": curve})
