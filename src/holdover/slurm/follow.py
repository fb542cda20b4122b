"""Following jobs: what they write, as it is written, until all have ended."""

import time
from collections.abc import Callable, Collection
from pathlib import Path

from .records import Submission
from .states import ENDED, JobStatus, job_statuses

SECONDS_BETWEEN_READS = 0.5
# SLURM is asked less often than files are read: its controller serves everybody.
SECONDS_BETWEEN_QUESTIONS = 5.0


class _Tail:
    """Whole lines of a file that grows, or does not exist yet."""

    def __init__(self, path: Path, prefix: str) -> None:
        self.path, self.prefix = path, prefix
        self.read, self.begun = 0, b""

    def lines(self) -> list[str]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.read)
            fresh = file.read()
        self.read += len(fresh)
        *whole, self.begun = (self.begun + fresh).split(b"\n")
        return [self.prefix + line.decode(errors="replace") for line in whole]


def follow(
    submission: Submission, ids: Collection[str], show: Callable[[str], None]
) -> list[JobStatus]:
    """Show what jobs write until they have ended; how they then stand."""
    tails = [
        _Tail(submission.log(job, stream), f"[{job}] " if len(ids) > 1 else "")
        for job in ids
        for stream in ("out", "err")
    ]

    def show_fresh() -> None:
        for tail in tails:
            for line in tail.lines():
                show(line)

    asked = time.monotonic()
    while True:
        show_fresh()
        asking = time.monotonic() - asked >= SECONDS_BETWEEN_QUESTIONS
        asked = time.monotonic() if asking else asked
        found = [one for one in job_statuses([submission], asking) if one.id in ids]
        if all(one.state in ENDED for one in found):
            break
        time.sleep(SECONDS_BETWEEN_READS)
    # The last lines may come behind the note of the end.
    time.sleep(SECONDS_BETWEEN_READS)
    show_fresh()
    return found
