"""The nightly tests were run recently, and their record says how they ended."""

import datetime
import json
import os
import subprocess
import sys

import pytest

from contract_grid import GRID, OPTIONS, QUICK, QUICK_ROWS
from holdover import CARRIES
from nightly import commit_date, complaint, last_record
from scripts import ROOT, SUPPORT

COMMITTED = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)


def test_the_last_nightly_run_is_recent():
    committed = commit_date()
    if committed is None:
        pytest.skip("this is no git checkout: the record's age cannot be judged")
    message = complaint(last_record(), committed)
    assert message is None, message


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "have no record"),
        (
            {"date": "2026-11-06T11:59:00+00:00", "failed": 0},
            "more than 14 days before this commit",
        ),
        ({"date": "2026-11-06T12:01:00+00:00", "failed": 0}, None),
        # Made after the commit.
        ({"date": "2026-11-21T12:00:00+00:00", "failed": 0}, None),
        (
            {"date": "2026-11-20T12:00:00+00:00", "failed": 1, "failures": ["tests/a.py::test"]},
            "1 nightly tests failed in their last run",
        ),
    ],
)
def test_what_is_wrong_with_a_record(record, message):
    said = complaint(record, COMMITTED)
    assert (said is None) if message is None else (message in said)


ENDINGS = """
import pytest

pytestmark = pytest.mark.nightly

def test_passes(): pass
def test_fails(): assert False
def test_skips(): pytest.skip("no GPU")

@pytest.fixture
def broken(): raise OSError

def test_without_its_fixture(broken): pass
"""


def test_the_record_counts_every_ending(tmp_path):
    (tmp_path / "test_endings.py").write_text(ENDINGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = nightly")
    call = [sys.executable, str(SUPPORT / "nightly.py"), "--record", "record.json", str(tmp_path)]
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    record = json.loads((tmp_path / "record.json").read_text())
    assert [record[name] for name in ("passed", "failed", "skipped")] == [1, 2, 1]
    assert record["failures"] == [
        "test_endings.py::test_fails",
        "test_endings.py::test_without_its_fixture",
    ]
    assert len(record["slowest"]) == 4
    assert {"date", "commit", "versions", "device", "seconds", "python"} <= set(record)


def test_make_quick_tries_every_kind_of_state():
    assert {OPTIONS[label].get("carry", "pooled") for label in QUICK} == set(CARRIES)
    assert {(name, label) for name, label in GRID if name in QUICK_ROWS and label in QUICK}
