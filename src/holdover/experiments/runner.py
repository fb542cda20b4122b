"""Runs of experiments that have no record yet, in sequence or in parallel (`parallel_runner.py`).

* A record is written as a whole when its run has ended. An interrupted run leaves its folder and
  continues there the next time.
* Other settings are another run in another folder, so no run continues with changed settings.
* A run that fails does not stop runs that do not need it; all failures are listed at the end.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..evaluation.cost import PeakMemory
from ..runs.provenance import choose_device, make_folder, provenance, write_record
from ..storage import EXPERIMENT, VERSION_FIELD
from .definition import Experiment, Run
from .experiment_file import LAYOUT, open_experiment, to_json
from .options import RunOptions
from .parallel_runner import ParallelRunner
from .records import KIND, Records, check_names, fingerprint, read_json, read_records
from .run_context import RunContext

SECONDS = "seconds.json"
# A file in a run's folder: its last attempt found too little memory.
OUT_OF_MEMORY = "ran-out-of-memory"


@dataclass(frozen=True)
class RunPlan:
    """The requested runs of an experiment, and those of them that have no record."""

    path: Path
    name: str
    experiment: Experiment
    seeds: Sequence[int]
    folder: Path
    """For the records."""
    fingerprints: Mapping[str, str]
    """By the name of the run."""
    runs: Sequence[Run]
    """All runs of the experiment."""
    chosen: Sequence[Run]
    todo: Sequence[Run]
    before: Records
    """The records from before."""

    def __str__(self) -> str:
        recorded = len(self.chosen) - len(self.todo)
        return f"{len(self.chosen)} runs, {recorded} have a record."


def plan_runs(path: Path, options: RunOptions) -> RunPlan:
    (plan,) = plan_all([path], options)
    return plan


def plan_all(paths: Sequence[Path], options: RunOptions) -> list[RunPlan]:
    """Plans of several experiments. A name in --only has to match in one of them, not in all."""
    plans = [_plan(path, options) for path in paths]
    names = [plan.name for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"There are two experiments named {name}: give each file once, or rename one."
            )
    for word in options.only:
        if not any(_named(run, [word]) for plan in plans for run in plan.runs):
            have = "has" if len(plans) == 1 else "have"
            arms = ", ".join(dict.fromkeys(run.arm for plan in plans for run in plan.runs))
            missing = f"{', '.join(names)} {have} no arm or run {word!r}"
            raise ValueError(f"{missing}: {'its' if len(plans) == 1 else 'their'} arms are {arms}.")
    return plans


def _plan(path: Path, options: RunOptions) -> RunPlan:
    name, experiment = open_experiment(path)
    seeds = options.seeds or experiment.seeds.get(options.scale, ())
    if not seeds:
        raise ValueError(
            f"{name} has no scale {options.scale}: it has {', '.join(experiment.seeds)}."
        )
    runs = list(experiment.runs(options.scale, seeds))
    check_names(name, runs)
    folder = options.results / name / options.scale
    fingerprints = {run.name: fingerprint(name, options.scale, run) for run in runs}
    chosen = chosen_runs(runs, options.only)
    before = read_records(folder)
    todo = [
        run
        for run in chosen
        if not _has_record(before, run, fingerprints)
        or (options.again and _named(run, options.only))
    ]
    return RunPlan(path, name, experiment, seeds, folder, fingerprints, runs, chosen, todo, before)


def run_experiment(path: Path, options: RunOptions, console: Console | None = None) -> Records:
    """Make the missing records; returns all records."""
    (records,) = run_experiments([path], options, console)
    return records


def run_experiments(
    paths: Sequence[Path], options: RunOptions, console: Console | None = None
) -> list[Records]:
    """Make the missing records of several experiments, which share the device."""
    console = console or Console(highlight=False)
    plans = plan_all(paths, options)
    for plan in plans:
        console.print(f"{plan.name}, {options.scale}: {plan}")
        if options.list:
            for run in plan.chosen:
                console.print(f"  {run.name}  {'to run' if run in plan.todo else 'recorded'}")
            # A report needs the layout next to the records.
            if plan.before.found and not (plan.folder / LAYOUT).exists():
                _write_layout(plan, options)
                console.print(f"  {LAYOUT} was missing next to the records: it is written.")
    if options.list:
        return [plan.before for plan in plans]
    for plan in plans:
        for place, flag in ((plan.folder, "--results"), (options.output, "--output")):
            make_folder(place, flag)
        _write_layout(plan, options)
    supervisors = [JobSupervisor(plan, options, console) for plan in plans]
    for supervisor in supervisors:
        supervisor.tidy()
    total = sum(len(plan.todo) for plan in plans)
    if options.together > 1 and total > 1:
        ParallelRunner(supervisors, options, console).run_all()
    else:
        _run_in_sequence(supervisors, total, console)
    _raise_failures(supervisors, total)
    return [read_records(plan.folder) for plan in plans]


def _write_layout(plan: RunPlan, options: RunOptions) -> None:
    write_record(plan.folder / LAYOUT, to_json(plan.name, options.scale, plan.experiment))


def _run_in_sequence(supervisors: Sequence["JobSupervisor"], total: int, console: Console) -> None:
    number = 0
    for supervisor in supervisors:
        for run in supervisor.plan.todo:
            number += 1
            console.rule(f"{run.name} ({number} of {total})", align="left")
            supervisor.run(run)


def _raise_failures(supervisors: Sequence["JobSupervisor"], total: int) -> None:
    failed = [f"{name}: {why}" for one in supervisors for name, why in one.failed.items()]
    if failed:
        raise ValueError(
            f"{len(failed)} of {total} runs failed ({'; '.join(failed)}): repeat the same command to "
            "continue from there."
        )


def chosen_runs(runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    """The runs that `only` names, and the runs they wait for."""
    wanted = {run.name for run in runs if _named(run, only)}
    for run in reversed(runs):
        if run.name in wanted:
            wanted |= set(run.after)
    return [run for run in runs if run.name in wanted]


def _named(run: Run, only: Sequence[str]) -> bool:
    """Requested, not only needed by another run."""
    names = (run.arm, run.name)
    return not only or any(
        word in names or any(fnmatchcase(name, word) for name in names) for word in only
    )


def _has_record(records: Records, run: Run, fingerprints: Mapping[str, str]) -> bool:
    record = records.found.get(run.name)
    return record is not None and record["fingerprint"] == fingerprints[run.name]


class JobSupervisor:
    """Runs one experiment and keeps track of records and failures."""

    def __init__(self, plan: RunPlan, options: RunOptions, console: Console) -> None:
        self.plan, self.options, self.console = plan, options, console
        waiting = {run.name for run in plan.todo}
        self.recorded = {
            run.name
            for run in plan.runs
            if run.name not in waiting and _has_record(plan.before, run, plan.fingerprints)
        }
        self.failed: dict[str, str] = {}

    def needs_failed(self, run: Run) -> bool:
        """Whether a run that this one needs has failed; then this one counts as failed, too."""
        failed = [name for name in run.after if name in self.failed]
        if failed:
            self.failed[run.name] = f"needs {failed[0]}"
        return bool(failed)

    def run(self, run: Run) -> None:
        if self.needs_failed(run):
            return
        folder = self.folder_of(run)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / OUT_OF_MEMORY).unlink(missing_ok=True)
            write_record(self.plan.folder / f"{run.name}.json", self._execute(run))
            self.mark_recorded(run)
        except (ValueError, OSError, FloatingPointError, torch.OutOfMemoryError) as error:
            self.failed[run.name] = str(error)
            if isinstance(error, torch.OutOfMemoryError):
                (folder / OUT_OF_MEMORY).touch()
            self.console.print(f"{run.name} failed: {error}", style="bold")
        except Exception as error:
            # A bug in the experiment or in holdover: show the traceback, and continue with the others.
            self.failed[run.name] = f"{type(error).__name__}: {error}"
            self.console.print_exception()

    def mark_recorded(self, run: Run) -> None:
        self.recorded.add(run.name)
        self.tidy()

    def ran_out_of_memory(self, run: Run) -> bool:
        return (self.folder_of(run) / OUT_OF_MEMORY).exists()

    def tidy(self) -> None:
        if not self.options.tidy:
            return
        runs = self.plan.runs
        needed = {one for run in runs if run.name not in self.recorded for one in run.after}
        for run in runs:
            if run.name in self.recorded - needed:
                shutil.rmtree(self.folder_of(run), ignore_errors=True)

    def folder_of(self, run: Run) -> Path:
        return self._folder(run.name)

    def _folder(self, name: str) -> Path:
        parent = self.options.output / self.plan.name / self.options.scale
        return parent / f"{name}-{self.plan.fingerprints[name][:8]}"

    def _execute(self, run: Run) -> dict[str, Any]:
        """Do the work of a run; returns its record."""
        device = choose_device(self.options.device)
        context = self._context(run)
        stopwatch = _Stopwatch(context.folder / SECONDS)
        with PeakMemory(device) as memory, stopwatch:
            measures = dict(run.do(context))
        curves = measures.pop("curves", {})
        notes = measures.pop("notes", [])
        return {
            "record": KIND,
            VERSION_FIELD: EXPERIMENT.version,
            "experiment": self.plan.name,
            "scale": self.options.scale,
            "run": run.name,
            "arm": run.arm,
            "seed": run.seed,
            "settings": run.settings,
            "fingerprint": self.plan.fingerprints[run.name],
            "measures": measures,
            "curves": curves,
            "notes": notes,
            "data": context.texts,
            "seconds": round(stopwatch.seconds, 1),
            "peak_memory": memory.result,
            "provenance": provenance(device),
        }

    def _context(self, run: Run) -> RunContext:
        options, records = self.options, self.plan.folder
        common = {key: getattr(options, key) for key in ("data_dir", "cache_dir", "device")}
        return RunContext(
            self.folder_of(run),
            run.settings,
            run.seed,
            {name: self._folder(name) for name in run.after},
            {name: read_json(records / f"{name}.json")["measures"] for name in run.after},
            self.console,
            {key: value for key, value in common.items() if value is not None},
        )


class _Stopwatch:
    """Seconds of all attempts, except for attempts that were killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before = json.loads(path.read_text())["seconds"] if path.exists() else 0.0
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.seconds = self.before + time.perf_counter() - self.started
        write_record(self.path, {"seconds": self.seconds})
