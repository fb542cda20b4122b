"""What SLURM says of jobs, and what it is told of them; with or without accounting.

* squeue knows what waits and runs. What has ended is asked of sacct, and where a cluster keeps no
  accounts, of scontrol, which knows it for some minutes (MinJobAge).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """A job as SLURM sees it."""

    state: str
    reason: str = ""
    exit_code: int | None = None


def need(program: str) -> None:
    if shutil.which(program) is None:
        raise ValueError(
            f"{program} is not on this machine: jobs are sent from a machine of a SLURM cluster, such "
            "as its login node (--dry-run shows the script anywhere)."
        )


def ask(ids: Iterable[str]) -> dict[str, Seen] | None:
    """What SLURM knows of jobs, without those that it has forgotten; None where it does not answer."""
    wanted = set(ids)
    if not wanted:
        return {}
    queue = _squeue()
    if queue is None:
        return None
    found = {job: seen for job, seen in queue.items() if job in wanted}
    ended = sorted({job.partition("_")[0] for job in wanted - set(found)})
    if ended:
        told = _sacct(ended) or _scontrol(ended)
        found |= {job: seen for job, seen in told.items() if job in wanted - set(found)}
    return found


def cancel(ids: Sequence[str]) -> None:
    need("scancel")
    done = subprocess.run(["scancel", *ids], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = " ".join(done.stderr.split())
        raise ValueError(f"SLURM did not cancel {', '.join(ids)}: {told or 'it says no more'}.")


def _said(*call: str) -> list[str] | None:
    """Lines of a program's output; None where it is missing or complains."""
    if shutil.which(call[0]) is None:
        return None
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None


def _squeue() -> dict[str, Seen] | None:
    lines = _said("squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i|%T|%r")
    if lines is None:
        return None
    found = {}
    for line in lines:
        job, state, reason = line.strip().split("|", 2)
        found[job] = Seen(state, "" if reason == "None" else reason)
    return found


def _sacct(arrays: Sequence[str]) -> dict[str, Seen]:
    call = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode")
    found = {}
    for line in _said("sacct", *call, f"--jobs={','.join(arrays)}") or ():
        job, state, code = line.split("|")
        found[job] = Seen(state.split()[0], exit_code=_code(code))
    return found


def _scontrol(arrays: Sequence[str]) -> dict[str, Seen]:
    found = {}
    for array in arrays:
        for line in _said("scontrol", "--oneliner", "show", "job", array) or ():
            told = dict(re.findall(r"(\w+)=(\S*)", line))
            job = told["JobId"]
            if "ArrayJobId" in told:
                job = f"{told['ArrayJobId']}_{told.get('ArrayTaskId', '')}"
            found[job] = Seen(told["JobState"], told.get("Reason", ""), _code(told["ExitCode"]))
    return found


def _code(text: str) -> int | None:
    """Of CODE:SIGNAL, as a shell would say it."""
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return int(code) or (128 + int(number) if number.isdigit() and int(number) else 0)
