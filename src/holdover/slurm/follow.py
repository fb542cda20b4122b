"""Follows jobs: shows their output as they write it, until all have ended."""

import time
from collections.abc import Callable, Collection
from pathlib import Path

from .records import Submission
from .states import ENDED, JobStatus, job_statuses

SECONDS_BETWEEN_READS = 0.5
# Less often than files are read, because SLURM's controller serves everybody.
SECONDS_BETWEEN_QUERIES = 5.0


class _Tail:
    """Complete new lines of a file that grows, or does not exist yet."""

    def __init__(self, path: Path, prefix: str) -> None:
        self.path, self.prefix = path, prefix
        self.offset, self.partial = 0, b""

    def lines(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            new = file.read()
        self.offset += len(new)
        *lines, self.partial = (self.partial + new).split(b"\n")
        return [self.prefix + line.decode(errors="replace") for line in lines]


def follow(
    submission: Submission, ids: Collection[str], show: Callable[[str], None]
) -> list[JobStatus]:
    """Show the output of jobs until they have ended; return their last states."""
    tails = [
        _Tail(submission.log(job, stream), f"[{job}] " if len(ids) > 1 else "")
        for job in ids
        for stream in ("out", "err")
    ]

    def show_new() -> None:
        for tail in tails:
            for line in tail.lines():
                show(line)

    queried = time.monotonic()
    while True:
        show_new()
        query = time.monotonic() - queried >= SECONDS_BETWEEN_QUERIES
        queried = time.monotonic() if query else queried
        statuses = [job for job in job_statuses([submission], query) if job.id in ids]
        if all(job.state in ENDED for job in statuses):
            break
        time.sleep(SECONDS_BETWEEN_READS)
    # The last lines may arrive after the end is noted.
    time.sleep(SECONDS_BETWEEN_READS)
    show_new()
    return statuses
