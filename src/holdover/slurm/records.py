"""Submissions: a folder each, with a record of its jobs beside their logs.

* `submission.json` is written here; `ID_status.json` by each job (keeper.py); scripts, pickles and
  `ID_0_log.out`, `ID_0_log.err` are submitit's.
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
# What is said in a log about a job rather than by it.
ABOUT = ("submitit ", "srun:", "slurmstepd")


@dataclass(frozen=True)
class JobRecord:
    """A job that SLURM has taken."""

    id: str
    """As SLURM shows it: 12, or 12_0 in an array."""
    name: str
    words: list[str]
    """What `holdover` was given."""


@dataclass
class Submission:
    folder: Path
    command: list[str]
    date: str
    slurm: dict[str, Any]
    jobs: list[JobRecord] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    """Jobs that `holdover jobs --cancel` ended: a small cluster forgets them."""

    def write(self) -> None:
        told = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_record(self.folder / SUBMISSION, {"record": KIND, **told})

    def log(self, job: str, stream: str) -> Path:
        """What a job (its first node) wrote to `out` or `err`."""
        return self.folder / f"{job}_0_log.{stream}"

    def status(self, job: str) -> dict[str, Any]:
        """What a job last noted of itself."""
        path = Path(status_path(self.folder).format(id=job))
        return json.loads(path.read_text()) if path.exists() else {}

    def last_line(self, job: str, failed: bool) -> str:
        """What a job said last: of why it failed, or else of how far it came."""
        for stream in ("err", "out") if failed else ("out", "err"):
            path = self.log(job, stream)
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            said = [line.strip() for line in lines if line.strip() and not line.startswith(ABOUT)]
            if said:
                return said[-1]
        return ""


def status_path(folder: Path) -> str:
    """With {id} for the number of a job."""
    return f"{str(folder.resolve()).replace('{', '{{').replace('}', '}}')}/{{id}}_status.json"


def begin_submission(jobs: Path, command: Sequence[str], slurm: dict[str, Any]) -> Submission:
    """A folder for a submission, named after its command and the time."""
    now = datetime.datetime.now(datetime.UTC)
    make_folder(jobs, "--jobs")
    verb = "-".join(word for word in command[:2] if word.isalpha())
    name = f"{verb}-{now:%Y%m%d-%H%M%S}"
    for number in itertools.count(2):
        # Others may be submitting in the same second.
        with suppress(FileExistsError):
            (jobs / name).mkdir()
            break
        name = f"{verb}-{now:%Y%m%d-%H%M%S}-{number}"
    return Submission(jobs / name, list(command), now.isoformat(timespec="seconds"), slurm)


def read_submissions(jobs: Path) -> list[Submission]:
    """All of a folder, the oldest first."""
    found = []
    for path in sorted(jobs.glob(f"*/{SUBMISSION}")):
        try:
            told = json.loads(path.read_text())
            del told["record"]
            told["jobs"] = [JobRecord(**job) for job in told["jobs"]]
            found.append(Submission(path.parent, **told))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} cannot be read as a submission ({error}): delete its folder, or move it away."
            ) from error
    return sorted(found, key=lambda submission: submission.date)


def find_jobs(submissions: Sequence[Submission], asked: str) -> tuple[Submission, list[str]]:
    """The submission of a job or of an array, and the numbers of the jobs that are meant."""
    for submission in reversed(submissions):
        meant = [job.id for job in submission.jobs if asked in (job.id, job.id.partition("_")[0])]
        if meant:
            return submission, meant
    known = ", ".join(job.id for submission in submissions[-5:] for job in submission.jobs)
    hint = f"the latest are {known}" if known else "nothing was submitted from here; see --jobs"
    raise ValueError(f"There is no job {asked} among the submissions: {hint}.")
