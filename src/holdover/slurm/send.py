"""Sending jobs to SLURM through submitit: one job, or an array of several."""

import io
import shlex
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .parameters import Parameters
from .records import JobRecord, Submission, status_path
from .scheduler import need


@dataclass(frozen=True)
class Job:
    """What one job is to do."""

    name: str
    words: list[str]
    """Of `holdover`."""
    after: tuple[str, ...] = ()
    """Names of jobs that must have succeeded before."""


@dataclass(frozen=True)
class How:
    """What all jobs of a submission share."""

    parameters: Parameters
    launcher: bool
    """Whether torchrun starts the processes."""
    processes: int
    """On each node."""
    requeues: int
    """How many time limits a job may meet."""


def import_submitit() -> Any:
    try:
        return import_module("submitit")
    except ImportError as error:
        raise ValueError(
            "holdover submit needs the package submitit, which is not installed: "
            "pip install 'holdover[slurm]'."
        ) from error


def known_parameters() -> set[str]:
    """What submitit knows of sbatch's options."""
    return set(import_submitit().SlurmExecutor._valid_parameters())


def in_waves(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that wait for the same others, each group behind those that it waits for."""
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.after, []).append(job)
    waiting, sent, found = list(groups.values()), set[str](), list[list[Job]]()
    while waiting:
        # One is always ready: jobs of a group cannot wait for one another in a circle.
        ready = next(group for group in waiting if set(group[0].after) <= sent)
        waiting.remove(ready)
        found.append(ready)
        sent |= {job.name for job in ready}
    return found


def script(jobs: Sequence[Job], how: How, folder: Path) -> str:
    """What sbatch would be given, and what each of its jobs would run."""
    submitit = import_submitit()

    class Anywhere(submitit.SlurmExecutor):
        """Writes scripts where there is no SLURM too."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    parts = []
    for group in in_waves(jobs):
        executor = Anywhere(folder, max_num_timeout=how.requeues)
        changed = _waiting_for([f"<{name}>" for name in group[0].after], how.parameters)
        executor.update_parameters(**how.parameters.for_submitit(**changed))
        if len(group) > 1:
            executor.parameters["map_count"] = len(group)
        text = executor._make_submission_file_text(executor._submitit_command_str, "")
        told = [f"# job {number}: {_command(job)}" for number, job in enumerate(group)]
        parts.append("\n".join([text.rstrip(), "", "# What the jobs run", *told]))
    return "\n\n".join(parts)


def _command(job: Job) -> str:
    return shlex.join(["holdover", *job.words])


def send(jobs: Sequence[Job], how: How, submission: Submission) -> None:
    """Submit jobs; the submission's record names those that SLURM has taken."""
    submitit = import_submitit()
    import cloudpickle

    from ..slurm import keeper

    need("sbatch")
    need("srun")
    # The keeper travels as it is: nothing of holdover is imported beside a training.
    cloudpickle.register_pickle_by_value(keeper)
    ids: dict[str, str] = {}
    for group in in_waves(jobs):
        executor = submitit.SlurmExecutor(submission.folder, max_num_timeout=how.requeues)
        changed = _waiting_for([ids[name] for name in group[0].after], how.parameters)
        executor.update_parameters(**how.parameters.for_submitit(**changed))
        status = status_path(submission.folder)
        keepers = [
            keeper.JobKeeper(job.words, how.launcher, how.processes, status) for job in group
        ]
        try:
            # submitit prints what sbatch says, and raises it too.
            with redirect_stderr(io.StringIO()):
                sent = executor.submit_array(keepers)
        except (
            submitit.core.utils.FailedJobError,
            submitit.core.utils.FailedSubmissionError,
        ) as error:
            raise ValueError(_refused(str(error), submission)) from error
        for job, taken in zip(group, sent, strict=True):
            ids[job.name] = taken.job_id
            submission.jobs.append(JobRecord(taken.job_id, job.name, job.words))
        submission.write()


def _waiting_for(ids: Sequence[str], parameters: Parameters) -> dict[str, str]:
    """What makes a job wait for others, and go away if one of them fails."""
    if not ids:
        return {}
    asked = parameters.known.get("dependency")
    waits = ",".join(filter(None, [asked, "afterok:" + ":".join(ids)]))
    return {"dependency": waits, "kill-on-invalid-dep": "yes"}


def _refused(said: str, submission: Submission) -> str:
    lines = [line.removeprefix("sbatch: error: ") for line in said.splitlines() if line.strip()]
    told = "; ".join(lines) or "it says no more"
    taken = ", ".join(job.id for job in submission.jobs)
    kept = f" Jobs {taken} were taken before: holdover jobs --cancel ends them." if taken else ""
    return (
        f"SLURM did not take the job ({told}): change what --slurm asks for; sinfo lists partitions."
        f"{kept}"
    )
