"""Queries SLURM for the state of jobs, and cancels them; works with or without accounting.

* squeue lists queued and running jobs. sacct lists ended ones. On a cluster without accounting,
  scontrol still has them for some minutes (MinJobAge).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SlurmState:
    """SLURM's state of a job."""

    state: str
    reason: str = ""
    exit_code: int | None = None


def need(program: str) -> None:
    if shutil.which(program) is None:
        raise ValueError(
            f"{program} is not on this machine: submit jobs from a machine of a SLURM cluster, such as "
            "its login node (--dry-run shows the script anywhere)."
        )


def ask(ids: Iterable[str]) -> dict[str, SlurmState] | None:
    """SLURM's states of jobs, without those it has no record of; None if it does not answer."""
    wanted = set(ids)
    if not wanted:
        return {}
    queue = _squeue()
    if queue is None:
        return None
    states = {job: state for job, state in queue.items() if job in wanted}
    ended = sorted({job.partition("_")[0] for job in wanted - set(states)})
    if ended:
        answer = _sacct(ended) or _scontrol(ended)
        states |= {job: state for job, state in answer.items() if job in wanted - set(states)}
    return states


def cancel(ids: Sequence[str]) -> None:
    need("scancel")
    done = subprocess.run(["scancel", *ids], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        raise ValueError(f"SLURM did not cancel {', '.join(ids)}: {reason or 'no reason given'}.")


def _output_lines(*call: str) -> list[str] | None:
    """Lines of a program's output; None if it is missing or fails."""
    if shutil.which(call[0]) is None:
        return None
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None


def _squeue() -> dict[str, SlurmState] | None:
    lines = _output_lines(
        "squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i|%T|%r"
    )
    if lines is None:
        return None
    states = {}
    for line in lines:
        job, state, reason = line.strip().split("|", 2)
        states[job] = SlurmState(state, "" if reason == "None" else reason)
    return states


def _sacct(arrays: Sequence[str]) -> dict[str, SlurmState]:
    call = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode")
    states = {}
    for line in _output_lines("sacct", *call, f"--jobs={','.join(arrays)}") or ():
        job, state, code = line.split("|")
        states[job] = SlurmState(state.split()[0], exit_code=_code(code))
    return states


def _scontrol(arrays: Sequence[str]) -> dict[str, SlurmState]:
    states = {}
    for array in arrays:
        for line in _output_lines("scontrol", "--oneliner", "show", "job", array) or ():
            fields = dict(re.findall(r"(\w+)=(\S*)", line))
            job = fields["JobId"]
            if "ArrayJobId" in fields:
                job = f"{fields['ArrayJobId']}_{fields.get('ArrayTaskId', '')}"
            code = _code(fields["ExitCode"])
            states[job] = SlurmState(fields["JobState"], fields.get("Reason", ""), code)
    return states


def _code(text: str) -> int | None:
    """The exit code of CODE:SIGNAL, as a shell reports it."""
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return int(code) or (128 + int(number) if number.isdigit() and int(number) else 0)
