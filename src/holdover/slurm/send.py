"""Sends jobs to SLURM through submitit: one job, or an array of several."""

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
    """The command of one job."""

    name: str
    words: list[str]
    """The command, without `holdover` itself."""
    after: tuple[str, ...] = ()
    """Names of jobs that must succeed first."""


@dataclass(frozen=True)
class JobSetup:
    """Settings that all jobs of a submission share."""

    parameters: Parameters
    launcher: bool
    """Whether torchrun starts the processes."""
    processes: int
    """Processes on each node."""
    requeues: int
    """How often a job is queued again after its time limit."""


def import_submitit() -> Any:
    try:
        return import_module("submitit")
    except ImportError as error:
        raise ValueError(
            "holdover submit needs the package submitit, which is not installed: "
            "pip install 'holdover[slurm]'."
        ) from error


def known_parameters() -> set[str]:
    """The options of sbatch that submitit supports."""
    return set(import_submitit().SlurmExecutor._valid_parameters())


def in_waves(jobs: Sequence[Job]) -> list[list[Job]]:
    """Groups of jobs that wait for the same others, each after the groups it waits for."""
    groups: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.after, []).append(job)
    waiting, sent, waves = list(groups.values()), set[str](), list[list[Job]]()
    while waiting:
        # There is always one, because jobs never wait for each other in a circle.
        ready = next(group for group in waiting if set(group[0].after) <= sent)
        waiting.remove(ready)
        waves.append(ready)
        sent |= {job.name for job in ready}
    return waves


def script(jobs: Sequence[Job], setup: JobSetup, folder: Path) -> str:
    """The script for sbatch, and the command of each of its jobs."""
    submitit = import_submitit()

    class Anywhere(submitit.SlurmExecutor):
        """Writes scripts on machines without SLURM too."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    parts = []
    for group in in_waves(jobs):
        executor = Anywhere(folder, max_num_timeout=setup.requeues)
        changed = _waiting_for([f"<{name}>" for name in group[0].after], setup.parameters)
        executor.update_parameters(**setup.parameters.for_submitit(**changed))
        if len(group) > 1:
            executor.parameters["map_count"] = len(group)
        text = executor._make_submission_file_text(executor._submitit_command_str, "")
        commands = [f"# job {number}: {_command(job)}" for number, job in enumerate(group)]
        parts.append("\n".join([text.rstrip(), "", "# Commands of the jobs", *commands]))
    return "\n\n".join(parts)


def _command(job: Job) -> str:
    return shlex.join(["holdover", *job.words])


def send(jobs: Sequence[Job], setup: JobSetup, submission: Submission) -> None:
    """Submit jobs; the submission's record names those that SLURM has accepted."""
    submitit = import_submitit()
    import cloudpickle

    from ..slurm import keeper

    need("sbatch")
    need("srun")
    # Send the keeper's code itself, so that the job need not import holdover to load it.
    cloudpickle.register_pickle_by_value(keeper)
    ids: dict[str, str] = {}
    for group in in_waves(jobs):
        executor = submitit.SlurmExecutor(submission.folder, max_num_timeout=setup.requeues)
        changed = _waiting_for([ids[name] for name in group[0].after], setup.parameters)
        executor.update_parameters(**setup.parameters.for_submitit(**changed))
        status = status_path(submission.folder)
        keepers = [
            keeper.JobKeeper(job.words, setup.launcher, setup.processes, status) for job in group
        ]
        try:
            # submitit prints the output of sbatch, and raises it too.
            with redirect_stderr(io.StringIO()):
                sent = executor.submit_array(keepers)
        except (
            submitit.core.utils.FailedJobError,
            submitit.core.utils.FailedSubmissionError,
        ) as error:
            raise ValueError(_refused(str(error), submission)) from error
        for job, accepted in zip(group, sent, strict=True):
            ids[job.name] = accepted.job_id
            submission.jobs.append(JobRecord(accepted.job_id, job.name, job.words))
        submission.write()


def _waiting_for(ids: Sequence[str], parameters: Parameters) -> dict[str, str]:
    """Options that make a job wait for others, and end it if one of them fails."""
    if not ids:
        return {}
    given = parameters.known.get("dependency")
    waits = ",".join(filter(None, [given, "afterok:" + ":".join(ids)]))
    return {"dependency": waits, "kill-on-invalid-dep": "yes"}


def _refused(output: str, submission: Submission) -> str:
    lines = [line.removeprefix("sbatch: error: ") for line in output.splitlines() if line.strip()]
    reason = "; ".join(lines) or "no reason given"
    ids = ", ".join(job.id for job in submission.jobs)
    rest = f" Jobs {ids} were accepted before: holdover jobs --cancel ends them." if ids else ""
    return (
        f"SLURM refused the job ({reason}): change the options after --slurm; sinfo lists partitions."
        f"{rest}"
    )
