"""From the command behind `--` to jobs: one, or one a combination of a sweep, or one a run.

* Every command is read in full before anything is sent: what a job would refuse in an hour is
  refused at once.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiments.options import RunOptions
from ..experiments.runner import plan_runs
from .parameters import Parameters, read_parameters
from .records import Submission, begin_submission
from .send import How, Job, known_parameters, script, send
from .sweep import variations

TRAINS = ("train", "qa train", "forecast train")
COMMANDS = (*TRAINS, "run", "eval", "qa eval", "forecast eval")


@dataclass(frozen=True)
class ParsedRequest:
    """What a command line asks for."""

    options: Any
    experiment: Path | None = None


@dataclass(frozen=True)
class Request:
    """What is to be submitted, and how."""

    command: list[str]
    """Behind --."""
    slurm: list[str]
    sweeps: list[str]
    jobs: Path
    """Folder of the submissions."""
    processes: int | None
    """On each node; none takes one a GPU."""
    requeues: int


Read = Callable[[Sequence[str]], ParsedRequest]


def submit(request: Request, read: Read) -> Submission:
    """Send the jobs; their record."""
    jobs, how = _prepared(request, read)
    parameters = how.parameters
    asked = {**parameters.known, **parameters.extra}
    submission = begin_submission(request.jobs, request.command, asked)
    try:
        send(jobs, how, submission)
    finally:
        if not submission.jobs:
            for path in submission.folder.iterdir():
                path.unlink()
            submission.folder.rmdir()
    return submission


def describe(request: Request, read: Read) -> str:
    """The scripts that would be sent."""
    jobs, how = _prepared(request, read)
    return script(jobs, how, request.jobs / "NAME")


def _prepared(request: Request, read: Read) -> tuple[list[Job], How]:
    verb = _verb(request.command)
    name = f"holdover-{verb.replace(' ', '-')}"
    parameters = read_parameters(request.slurm, known_parameters(), name)
    for flag, value, least in (
        ("--requeues", request.requeues, 0),
        ("--processes-per-node", request.processes, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{flag} {value} must be at least {least}.")
    jobs = _runs(request, read) if verb == "run" else _combinations(request, read, verb)
    return jobs, _how(request, verb, parameters)


def _verb(command: Sequence[str]) -> str:
    for count in (1, 2):
        verb = " ".join(command[:count])
        if verb in COMMANDS:
            return verb
    given = " ".join(command[:2]) if command[:1] in (["qa"], ["forecast"]) else command[0]
    near = difflib.get_close_matches(given, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(COMMANDS)}."
    raise ValueError(f"{given!r} is not a command that holdover submit sends; {hint}")


def _how(request: Request, verb: str, parameters: Parameters) -> How:
    trains = verb in TRAINS
    if not trains and (parameters.nodes > 1 or request.processes not in (None, 1)):
        raise ValueError(
            f"{verb} runs in one process, and several were asked for: leave nodes and "
            "--processes-per-node out."
        )
    processes = (request.processes or max(parameters.gpus, 1)) if trains else 1
    return How(parameters, processes * parameters.nodes > 1, processes, request.requeues)


def _combinations(request: Request, read: Read, verb: str) -> list[Job]:
    """A job for each combination of the sweep's values, in a folder of its own."""
    command = list(request.command)
    if verb in TRAINS and "--resume" not in command:
        # The same words begin the run and, when the job is queued again, continue it.
        command.append("--resume-if-begun")
    found = []
    for one in variations(request.sweeps):
        words = [*command, *one.words]
        if one.words:
            words.append(f"output={read(words).options.output / one.name}")
        read(words)
        found.append(Job(one.name or verb, words))
    return found


def _runs(request: Request, read: Read) -> list[Job]:
    """A job for each run of an experiment that has no record."""
    if request.sweeps:
        raise ValueError(
            "--sweep is not for experiments, whose runs are jobs already: leave it out, or give the "
            "experiment --seeds."
        )
    asked = read(request.command)
    options = asked.options
    assert isinstance(options, RunOptions) and asked.experiment is not None
    if options.list:
        raise ValueError("--list sends nothing: leave it out, or submit's own --dry-run instead.")
    plan = plan_runs(asked.experiment, options)
    if not plan.todo:
        raise ValueError(f"There is nothing to run: {plan.name} at {options.scale} has {plan}")
    names = {run.name for run in plan.todo}
    return [
        Job(
            run.name,
            [*request.command, f"only={run.name}", "together=1"],
            tuple(name for name in run.after if name in names),
        )
        for run in plan.todo
    ]
