"""How jobs stand: what they noted themselves, and what SLURM says of the others."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .records import Submission
from .scheduler import Seen, ask

State = Literal["queued", "running", "done", "failed", "cancelled", "lost"]
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled", "lost"})
# SLURM's words; what is not here is a way to run.
STATES: dict[str, State] = {
    "PENDING": "queued",
    "REQUEUED": "queued",
    "REQUEUE_HOLD": "queued",
    "REQUEUE_FED": "queued",
    "SPECIAL_EXIT": "queued",
    "COMPLETED": "done",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    **dict.fromkeys(
        ("BOOT_FAIL", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
        "failed",
    ),
}


@dataclass(frozen=True)
class JobStatus:
    """How a job stands."""

    id: str
    name: str
    state: State
    restarts: int
    """How often it was queued again."""
    why: str
    """What is known of the reason: exit code, SLURM's words."""


def job_statuses(submissions: Iterable[Submission], asking: bool = True) -> list[JobStatus]:
    """Of all jobs; without asking SLURM, or where it does not answer, as they noted it themselves."""
    submissions = list(submissions)
    noted = {
        job.id: submission.status(job.id) for submission in submissions for job in submission.jobs
    }
    open_ones = [job for job, status in noted.items() if status.get("state") not in ENDED]
    seen = ask(open_ones) if asking else None
    found = []
    for submission in submissions:
        for job in submission.jobs:
            status = noted[job.id]
            cancelled = job.id in submission.cancelled
            state, why = _judged(status, job.id, cancelled, seen)
            found.append(JobStatus(job.id, job.name, state, status.get("restarts", 0), why))
    return found


def _judged(
    status: Mapping[str, Any], job: str, cancelled: bool, answer: Mapping[str, Seen] | None
) -> tuple[State, str]:
    noted = status.get("state", "")
    if noted == "done":
        return "done", ""
    if noted == "failed":
        return "failed", status.get("why") or f"exit code {status['exit_code']}"
    if answer is None and not cancelled:
        return ("running" if noted == "running" else "queued"), ""
    if answer is not None and job in answer:
        seen = answer[job]
        state = STATES.get(seen.state, "running")
        if state == "failed":
            code = f", exit code {seen.exit_code}" if seen.exit_code else ""
            return state, f"SLURM: {seen.state.lower().replace('_', ' ')}{code}"
        return state, seen.reason if state == "queued" else ""
    # SLURM has forgotten it. What it had queued again it would know.
    if cancelled or noted == "stopped":
        return "cancelled", ""
    return "lost", "SLURM knows it no more"
