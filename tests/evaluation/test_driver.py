"""The driver of all evaluations: folder, record, names of rows, differences."""

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from holdover.evaluation.driver import Evaluation, difference, row_names
from holdover.evaluation.intervals import Resampled


@dataclass
class Options:
    output: Path
    device: str = "cpu"
    bf16: bool = False
    model: str = "somewhere/runs/first"


def test_an_evaluation_writes_shows_and_says_where(tmp_path):
    console = Console(file=io.StringIO(), width=400)
    evaluation = Evaluation(Options(tmp_path / "eval"), console)
    record = evaluation.record("test", {"name": "a"}, {"source": "b"}, rows=[{"loss": 1.0}])
    assert list(record) == [
        *("record", "format_version", "model", "data", "options", "rows", "provenance")
    ]
    evaluation.write("test.json", record)
    assert json.loads((tmp_path / "eval" / "test.json").read_text()) == record
    drawn = []
    shown = evaluation.finish(
        record, lambda record, console: console.print("a table"), lambda: drawn.append(1)
    )
    output = console.file.getvalue()
    assert shown is record and drawn and "a table" in output
    assert f"Record and plots: {tmp_path / 'eval'}" in output


def test_a_comparison_has_notes_and_differences_in_its_record(tmp_path):
    evaluation = Evaluation(Options(tmp_path))
    record = evaluation.record("test", {}, {}, rows=[], notes=["a note"], differences=[])
    assert [key for key in record if key in ("notes", "options", "rows", "differences")] == [
        *("notes", "options", "rows", "differences")
    ]


@pytest.mark.parametrize("bf16", [False, True])
def test_autocast_is_that_of_the_options(tmp_path, bf16):
    with Evaluation(Options(tmp_path, bf16=bf16)).autocast():
        assert torch.is_autocast_enabled("cpu") == bf16


def test_rows_have_different_names(tmp_path):
    names = row_names("one/a", ["two/a", "b", "repeat"], reserved=("repeat",))
    assert len(set(names)) == 4 and names[-1] == "repeat (2)"


def test_a_difference_is_paired():
    theirs = np.random.default_rng(0).normal(size=50)
    resampled = Resampled(np.arange(50), draws=200)
    result = difference("a", "b", resampled, {"loss": (theirs + 1) - theirs})
    assert (result["of"], result["above"]) == ("a", "b")
    assert result["loss"] == pytest.approx({"value": 1, "low": 1, "high": 1})
    assert resampled.mean(theirs)["low"] < theirs.mean() < resampled.mean(theirs)["high"]
