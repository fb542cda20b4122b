"""Runs the tests marked `nightly` and records the result in results/nightly/nightly.json.

`make nightly` runs this file. Arguments go to pytest. If they select tests, nothing is recorded,
unless --record names a file:

    python tests/support/nightly.py --record /tmp/part.json tests/pages
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "nightly" / "nightly.json"
DAYS = 14
SLOWEST = 20
WHOLE = ("-n", "2", "--dist", "worksteal")


class Results:
    """A pytest plugin that keeps how each test ended."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        self.seconds[name] = self.seconds.get(name, 0.0) + report.duration
        # A test passes with its call, unless its setup or teardown fails.
        if report.failed or report.skipped or (report.when == "call" and name not in self.outcomes):
            self.outcomes[name] = report.outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes[report.nodeid] = "failed"

    def record(self) -> dict[str, Any]:
        def named(outcome: str) -> list[str]:
            return sorted(name for name, ended in self.outcomes.items() if ended == outcome)

        slowest = sorted(self.seconds, key=lambda name: -self.seconds[name])[:SLOWEST]
        return {
            **{outcome: len(named(outcome)) for outcome in ("passed", "failed", "skipped")},
            "failures": named("failed"),
            "slowest": {name: round(self.seconds[name], 1) for name in slowest},
        }


def complaint(record: dict[str, Any] | None, committed: datetime.datetime) -> str | None:
    """What is wrong with the last record for a commit of that date."""
    again = "Run `make nightly` and commit results/nightly/nightly.json."
    if record is None:
        return f"The nightly tests have no record. {again}"
    age = committed - datetime.datetime.fromisoformat(record["date"])
    if age > datetime.timedelta(days=DAYS):
        return (
            f"The nightly tests last ran more than {DAYS} days before this commit, "
            f"on {record['date'][:10]}. {again}"
        )
    if record["failed"]:
        names = "\n".join(record["failures"])
        return f"{record['failed']} nightly tests failed in their last run. {again}\n{names}"
    return None


def commit_date() -> datetime.datetime | None:
    """When HEAD was committed, or None outside a git checkout."""
    call = ["git", "log", "-1", "--format=%cI"]
    try:
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return datetime.datetime.fromisoformat(done.stdout.strip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the record to this file")
    options, selection = parser.parse_known_args()
    results, start = Results(), time.monotonic()
    code = pytest.main(["-m", "nightly", *(selection or WHOLE)], plugins=[results])
    # After pytest, so that tests import holdover first.
    from holdover.runs.provenance import provenance, write_record

    path = options.record or (None if selection else RECORD)
    if path is not None and code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        seconds = round(time.monotonic() - start)
        write_record(path, {**provenance(), "seconds": seconds, **results.record()})
        print(f"Recorded in {path}.")
    return int(code)


def last_record() -> dict[str, Any] | None:
    return json.loads(RECORD.read_text()) if RECORD.exists() else None


if __name__ == "__main__":
    sys.exit(main())
