"""What SLURM is asked for: KEY=VALUE words as submitit and sbatch take them."""

import difflib
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# What submitit calls otherwise than sbatch.
OTHER_NAMES = {"name": "job_name", "timeout_min": "time", "num_gpus": "gpus_per_node"}
EXTRA = "extra."
LISTS = ("setup", "teardown", "srun_args")
# What holdover decides: one task a node, whose signals it handles.
DECIDED = {
    "ntasks_per_node": "holdover starts one task a node, and its processes from there: give "
    "--processes-per-node",
    "use_srun": "jobs are started with srun, which their signals need",
    "additional_parameters": "give what sbatch has and submitit has not as extra.KEY=VALUE",
}
DECIDED["tasks_per_node"] = DECIDED["ntasks_per_node"]
MINUTES = 60


@dataclass(frozen=True)
class Parameters:
    """Of one job."""

    known: dict[str, Any] = field(default_factory=dict)
    """For submitit."""
    extra: dict[str, Any] = field(default_factory=dict)
    """For sbatch, as they stand."""

    @property
    def nodes(self) -> int:
        return self.known.get("nodes", 1)

    @property
    def gpus(self) -> int:
        """On each node; kinds (a100:4) left out."""
        asked = str(self.known.get("gpus_per_node") or self.known.get("gpus_per_task") or 0)
        count = asked.rpartition(":")[2]
        return int(count) if count.isdigit() else 1

    def for_submitit(self, **changed: str) -> dict[str, Any]:
        return {**self.known, "additional_parameters": {**self.extra, **changed}}


def read_parameters(words: Sequence[str], names: set[str], job_name: str) -> Parameters:
    """From KEY=VALUE words; `names` are those that submitit knows."""
    known: dict[str, Any] = {"job_name": job_name, "time": MINUTES}
    # Whether jobs may be queued again is otherwise the cluster's choice.
    extra: dict[str, Any] = {"requeue": True}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise ValueError(
                f"--slurm {word!r} is no KEY=VALUE: write for example partition=gpu time=2:00:00; the "
                "command to run stands behind --."
            )
        if key.startswith(EXTRA):
            extra[key.removeprefix(EXTRA).replace("_", "-")] = _plain(value)
            continue
        name = key.replace("-", "_")
        name = OTHER_NAMES.get(name, name)
        if name in DECIDED:
            raise ValueError(f"--slurm {key} cannot be chosen: {DECIDED[name]}.")
        if name == "mem_gb":
            extra["mem"] = f"{value}G"
        elif name not in names:
            raise ValueError(_unknown(key, names))
        elif name == "mem":
            # As sbatch reads it: submitit would take a number for gigabytes.
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
    """Of a time as SLURM writes it, rounded up."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(
            f"--slurm time={text} is no time: give minutes, HOURS:MINUTES:SECONDS or "
            "DAYS-HOURS:MINUTES:SECONDS."
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
        raise ValueError(f"--slurm time={text} leaves no time: give at least a minute.")
    return total


def _plain(value: str) -> Any:
    words = {"true": True, "yes": True, "false": False, "no": False}
    return int(value) if value.isdigit() else words.get(value, value)


def _unknown(key: str, names: set[str]) -> str:
    shown = sorted(name.replace("_", "-") for name in {*names, "mem_gb"} - set(DECIDED))
    near = difflib.get_close_matches(key.replace("_", "-"), shown, n=3)
    hint = f"did you mean {', '.join(near)}" if near else f"known are {', '.join(shown)}"
    return (
        f"--slurm {key} is not known; {hint}? What else sbatch has is given as {EXTRA}{key}=VALUE."
    )
