"""Files that version 0.1.0 wrote open in the current code, and give the numbers they gave then.

`write_files.py` made the folder v0_1_0 once; its expected.json says what 0.1.0 read from each file. Each
test works in its own copy.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from legacy_reading import READERS

FILES = Path(__file__).parent / "v0_1_0"
EXPECTED: dict[str, Any] = json.loads((FILES / "expected.json").read_text())
# On the machine that wrote the files everything is equal. Other processors round in other ways; a wrong
# weight or token changes far more. Differences of two losses are as exact as the losses.
RELATIVE, ABSOLUTE = 1e-6, 2e-6
# Optimiser steps multiply such differences.
TRAINED = 1e-5
# Computed from histograms, in which a value at a border changes its bin.
AUC = 1e-3

# Names that have moved still work, and say so.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The current folder is a copy of the files."""
    folder = tmp_path / "v0_1_0"
    shutil.copytree(FILES, folder, symlinks=True)
    monkeypatch.chdir(folder)
    # Wide enough for every table; no cache of this machine is read.
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("HOLDOVER_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.mark.parametrize("name", READERS)
def test_files_of_0_1_0_give_what_they_gave(copy, name):
    assert differences(EXPECTED[name], READERS[name]()) == []


def test_everything_that_was_recorded_is_tested():
    assert set(EXPECTED) == set(READERS)


def differences(expected: Any, found: Any, place: str = "") -> list[str]:
    """Where values differ. Keys that are new are no difference; lists must be as long as they were."""
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = [f"{place}/{key} is missing" for key in expected if key not in found]
        shared = [key for key in expected if key in found]
        return missing + [
            difference
            for key in shared
            for difference in differences(expected[key], found[key], f"{place}/{key}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            difference
            for number, (one, other) in enumerate(zip(expected, found, strict=True))
            for difference in differences(one, other, f"{place}/{number}")
        ]
    if isinstance(expected, float) and isinstance(found, int | float):
        relative = TRAINED if "losses" in place or "validations" in place else RELATIVE
        absolute = AUC if "_auc" in place else ABSOLUTE
        equal = math.isclose(expected, found, rel_tol=relative, abs_tol=absolute)
    else:
        equal = expected == found
    return [] if equal else [f"{place} was {expected!r} and is {found!r}"]
