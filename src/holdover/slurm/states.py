"""The states of jobs: as they wrote them themselves, and as SLURM reports the others."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .records import Submission
from .scheduler import SlurmState, ask

State = Literal["queued", "running", "done", "failed", "cancelled", "lost"]
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled", "lost"})
# SLURM's states; every state that is missing here means running.
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
    """The state of a job."""

    id: str
    name: str
    state: State
    restarts: int
    """How often the job was queued again."""
    why: str
    """The reason, if known: an exit code, or SLURM's words."""


def job_statuses(submissions: Iterable[Submission], query: bool = True) -> list[JobStatus]:
    """The states of all jobs; only as they wrote them if query is False or SLURM does not answer."""
    submissions = list(submissions)
    written = {
        job.id: submission.status(job.id) for submission in submissions for job in submission.jobs
    }
    not_ended = [job for job, status in written.items() if status.get("state") not in ENDED]
    answer = ask(not_ended) if query else None
    statuses = []
    for submission in submissions:
        for job in submission.jobs:
            status = written[job.id]
            cancelled = job.id in submission.cancelled
            state, why = _state(status, job.id, cancelled, answer)
            statuses.append(JobStatus(job.id, job.name, state, status.get("restarts", 0), why))
    return statuses


def _state(
    status: Mapping[str, Any], job: str, cancelled: bool, answer: Mapping[str, SlurmState] | None
) -> tuple[State, str]:
    written = status.get("state", "")
    if written == "done":
        return "done", ""
    if written == "failed":
        return "failed", status.get("why") or f"exit code {status['exit_code']}"
    if answer is None and not cancelled:
        return ("running" if written == "running" else "queued"), ""
    if answer is not None and job in answer:
        reported = answer[job]
        state = STATES.get(reported.state, "running")
        if state == "failed":
            code = f", exit code {reported.exit_code}" if reported.exit_code else ""
            return state, f"SLURM: {reported.state.lower().replace('_', ' ')}{code}"
        return state, reported.reason if state == "queued" else ""
    # SLURM has no record of it, which it would have if it had queued the job again.
    if cancelled or written == "stopped":
        return "cancelled", ""
    return "lost", "SLURM has no record of it"
