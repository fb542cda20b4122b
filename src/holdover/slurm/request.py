"""Turns the command after `--` into jobs: one, one for each combination of a sweep, or one for each run.

* Every command is parsed and checked before anything is sent, so that errors appear at once and not
  when the job starts.
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
from .send import Job, JobSetup, known_parameters, script, send
from .sweep import variations

TRAINS = ("train", "qa train", "forecast train")
COMMANDS = (*TRAINS, "run", "eval", "qa eval", "forecast eval")


@dataclass(frozen=True)
class ParsedRequest:
    """The checked settings of a command."""

    options: Any
    experiment: Path | None = None


@dataclass(frozen=True)
class Request:
    """The command to submit, and the options of submit."""

    command: list[str]
    """The words after --."""
    slurm: list[str]
    sweeps: list[str]
    jobs: Path
    """Folder of the submissions."""
    processes: int | None
    """Processes on each node; None takes one per GPU."""
    requeues: int


Read = Callable[[Sequence[str]], ParsedRequest]


def submit(request: Request, read: Read) -> Submission:
    """Send the jobs; return their record."""
    jobs, setup = _prepare(request, read)
    slurm = {**setup.parameters.known, **setup.parameters.extra}
    submission = begin_submission(request.jobs, request.command, slurm)
    try:
        send(jobs, setup, submission)
    finally:
        if not submission.jobs:
            for path in submission.folder.iterdir():
                path.unlink()
            submission.folder.rmdir()
    return submission


def describe(request: Request, read: Read) -> str:
    """The scripts that submit would send."""
    jobs, setup = _prepare(request, read)
    return script(jobs, setup, request.jobs / "NAME")


def _prepare(request: Request, read: Read) -> tuple[list[Job], JobSetup]:
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
    return jobs, _setup(request, verb, parameters)


def _verb(command: Sequence[str]) -> str:
    for count in (1, 2):
        verb = " ".join(command[:count])
        if verb in COMMANDS:
            return verb
    given = " ".join(command[:2]) if command[:1] in (["qa"], ["forecast"]) else command[0]
    near = difflib.get_close_matches(given, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it sends {', '.join(COMMANDS)}."
    raise ValueError(f"{given!r} is not a command that holdover submit sends; {hint}")


def _setup(request: Request, verb: str, parameters: Parameters) -> JobSetup:
    trains = verb in TRAINS
    if not trains and (parameters.nodes > 1 or request.processes not in (None, 1)):
        raise ValueError(
            f"{verb} runs in one process, so --slurm nodes and --processes-per-node cannot ask for "
            "several: leave them out."
        )
    processes = (request.processes or max(parameters.gpus, 1)) if trains else 1
    return JobSetup(parameters, processes * parameters.nodes > 1, processes, request.requeues)


def _combinations(request: Request, read: Read, verb: str) -> list[Job]:
    """A job for each combination of the sweep's values, each with its own folder."""
    command = list(request.command)
    if verb in TRAINS and "--resume" not in command:
        # The same command begins the run and, after the job was queued again, continues it.
        command.append("--resume-if-begun")
    jobs = []
    for variation in variations(request.sweeps):
        words = [*command, *variation.words]
        if variation.words:
            words.append(f"output={read(words).options.output / variation.name}")
        read(words)
        jobs.append(Job(variation.name or verb, words))
    return jobs


def _runs(request: Request, read: Read) -> list[Job]:
    """A job for each run of an experiment that has no record yet."""
    if request.sweeps:
        raise ValueError(
            "--sweep is not for experiments, whose runs are separate jobs already: leave it out, or "
            "give the experiment --seeds."
        )
    parsed = read(request.command)
    options = parsed.options
    assert isinstance(options, RunOptions) and parsed.experiment is not None
    if options.list:
        raise ValueError("--list runs nothing: leave it out, or use --dry-run of holdover submit.")
    plan = plan_runs(parsed.experiment, options)
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
