"""Options for SLURM: KEY=VALUE words, with the names of submitit and sbatch."""

import difflib
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Options with another name in submitit than in sbatch.
OTHER_NAMES = {"name": "job_name", "timeout_min": "time", "num_gpus": "gpus_per_node"}
EXTRA = "extra."
LISTS = ("setup", "teardown", "srun_args")
# Options that holdover sets itself: one task per node, whose signals it handles.
DECIDED = {
    "ntasks_per_node": "holdover starts one task per node, which starts the processes: give "
    "--processes-per-node",
    "use_srun": "jobs always start with srun, so that they receive signals",
    "additional_parameters": "give options that submitit lacks as extra.KEY=VALUE",
}
DECIDED["tasks_per_node"] = DECIDED["ntasks_per_node"]
MINUTES = 60


@dataclass(frozen=True)
class Parameters:
    """The options of one job."""

    known: dict[str, Any] = field(default_factory=dict)
    """Options for submitit."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Options for sbatch, unchanged."""

    @property
    def nodes(self) -> int:
        return self.known.get("nodes", 1)

    @property
    def gpus(self) -> int:
        """GPUs of each node, without their kind (a100:4)."""
        value = str(self.known.get("gpus_per_node") or self.known.get("gpus_per_task") or 0)
        count = value.rpartition(":")[2]
        return int(count) if count.isdigit() else 1

    def for_submitit(self, **changed: str) -> dict[str, Any]:
        return {**self.known, "additional_parameters": {**self.extra, **changed}}


def read_parameters(words: Sequence[str], names: set[str], job_name: str) -> Parameters:
    """The options from KEY=VALUE words; `names` are those that submitit supports."""
    known: dict[str, Any] = {"job_name": job_name, "time": MINUTES}
    # Otherwise the cluster decides whether jobs may be queued again.
    extra: dict[str, Any] = {"requeue": True}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ValueError(
                f"--slurm {word!r} is not KEY=VALUE: write for example partition=gpu time=2:00:00, and "
                "the command to run after --."
            )
        if key.startswith(EXTRA):
            extra[key.removeprefix(EXTRA).replace("_", "-")] = _plain(value)
            continue
        name = key.replace("-", "_")
        name = OTHER_NAMES.get(name, name)
        if name in DECIDED:
            raise ValueError(f"--slurm {key} cannot be set: {DECIDED[name]}.")
        if name == "mem_gb":
            extra["mem"] = f"{value}G"
        elif name not in names:
            raise ValueError(_unknown(key, names))
        elif name == "mem":
            # Passed to sbatch unchanged: submitit would read a number as gigabytes.
            extra["mem"] = value
        elif name in LISTS:
            known[name] = known.get(name, []) + (
                shlex.split(value) if name == "srun_args" else [value]
            )
        elif name == "time":
            known[name] = minutes(value)
        elif _plain(value) is not False:
            known[name] = _plain(value)
    for name in ("nodes", "signal_delay_s", "array_parallelism"):
        if type(known.get(name, 1)) is not int or known.get(name, 1) < 1:
            raise ValueError(f"--slurm {name}={known[name]} must be a whole number of at least 1.")
    return Parameters(known, extra)


def minutes(text: str) -> int:
    """The minutes of a time in SLURM's format, rounded up."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(
            f"--slurm time={text} is not a time: give MINUTES, MINUTES:SECONDS, "
            "HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES:SECONDS."
        )
    days, *parts = (None if part is None else int(part) for part in match.groups())
    given = [part for part in parts if part is not None]
    if days is not None:
        hours, minute, second = (*given, 0, 0)[:3]
    elif len(given) == 3:
        hours, minute, second = given
    else:
        hours, (minute, second) = 0, (*given, 0)[:2]
    total = math.ceil(((days or 0) * 24 + hours) * 60 + minute + second / 60)
    if total < 1:
        raise ValueError(f"--slurm time={text} is zero: give at least a minute.")
    return total


def _plain(value: str) -> Any:
    words = {"true": True, "yes": True, "false": False, "no": False}
    return int(value) if value.isdigit() else words.get(value, value)


def _unknown(key: str, names: set[str]) -> str:
    known = sorted(name.replace("_", "-") for name in {*names, "mem_gb"} - set(DECIDED))
    near = difflib.get_close_matches(key.replace("_", "-"), known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"submitit has {', '.join(known)}."
    return (
        f"--slurm {key} is not an option of submitit; {hint} Give other options of sbatch as "
        f"{EXTRA}{key}=VALUE."
    )
