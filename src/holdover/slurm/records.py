"""Submissions: each has a folder with a record of its jobs, and with their logs.

* This module writes `submission.json`, each job (keeper.py) its `ID_status.json`, and submitit the
  scripts, pickles, `ID_0_log.out` and `ID_0_log.err`.
"""

import datetime
import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..runs.provenance import make_folder, write_record

SUBMISSION = "submission.json"
KIND = "submission"
# Beginnings of log lines that are about a job rather than from it.
NOT_FROM_JOB = ("submitit ", "srun:", "slurmstepd")


@dataclass(frozen=True)
class JobRecord:
    """A job that SLURM has accepted."""

    id: str
    """SLURM's number: 12, or 12_0 in an array."""
    name: str
    words: list[str]
    """The command, without `holdover` itself."""


@dataclass
class Submission:
    folder: Path
    command: list[str]
    date: str
    slurm: dict[str, Any]
    jobs: list[JobRecord] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    """Jobs that `holdover jobs --cancel` ended; a cluster without accounting forgets them."""

    def write(self) -> None:
        fields = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_record(self.folder / SUBMISSION, {"record": KIND, **fields})

    def log(self, job: str, stream: str) -> Path:
        """The log of a job's first node; stream: `out` or `err`."""
        return self.folder / f"{job}_0_log.{stream}"

    def status(self, job: str) -> dict[str, Any]:
        """The state that a job last wrote; empty before that."""
        path = Path(status_path(self.folder).format(id=job))
        return json.loads(path.read_text()) if path.exists() else {}

    def last_line(self, job: str, failed: bool) -> str:
        """The last line of a job's log: its error if it failed, else its progress."""
        for stream in ("err", "out") if failed else ("out", "err"):
            path = self.log(job, stream)
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            own = [
                line.strip() for line in lines if line.strip() and not line.startswith(NOT_FROM_JOB)
            ]
            if own:
                return own[-1]
        return ""


def status_path(folder: Path) -> str:
    """The path of status files, with {id} for the number of a job."""
    return f"{str(folder.resolve()).replace('{', '{{').replace('}', '}}')}/{{id}}_status.json"


def begin_submission(jobs: Path, command: Sequence[str], slurm: dict[str, Any]) -> Submission:
    """Make a submission's folder, named after its command and the time."""
    now = datetime.datetime.now(datetime.UTC)
    make_folder(jobs, "--jobs")
    verb = "-".join(word for word in command[:2] if word.isalpha())
    name = f"{verb}-{now:%Y%m%d-%H%M%S}"
    for number in itertools.count(2):
        # Another process may submit in the same second.
        with suppress(FileExistsError):
            (jobs / name).mkdir()
            break
        name = f"{verb}-{now:%Y%m%d-%H%M%S}-{number}"
    return Submission(jobs / name, list(command), now.isoformat(timespec="seconds"), slurm)


def read_submissions(jobs: Path) -> list[Submission]:
    """All submissions in a folder, oldest first."""
    submissions = []
    for path in sorted(jobs.glob(f"*/{SUBMISSION}")):
        try:
            fields = json.loads(path.read_text())
            del fields["record"]
            fields["jobs"] = [JobRecord(**job) for job in fields["jobs"]]
            submissions.append(Submission(path.parent, **fields))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a readable record of a submission ({error}): delete or move its folder."
            ) from error
    return sorted(submissions, key=lambda submission: submission.date)


def find_jobs(submissions: Sequence[Submission], job_id: str) -> tuple[Submission, list[str]]:
    """The submission of a job or an array, and the numbers of its jobs that match."""
    for submission in reversed(submissions):
        matches = [
            job.id for job in submission.jobs if job_id in (job.id, job.id.partition("_")[0])
        ]
        if matches:
            return submission, matches
    known = ", ".join(job.id for submission in submissions[-5:] for job in submission.jobs)
    hint = f"the latest are {known}" if known else "no jobs were submitted from here; see --jobs"
    raise ValueError(f"There is no job {job_id} among the submissions: {hint}.")
