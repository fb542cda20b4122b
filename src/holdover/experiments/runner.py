"""Runs of experiments: those without a record, one after the other or several at a time (together.py).

* A record is written when its run has ended, as a whole; an interrupted run leaves its folder, and goes
  on there the next time.
* Other settings are another run with another folder: nothing is continued that was begun differently.
* A run that fails does not stop those that do not need it; all failures are named at the end.
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
from .experiment_file import open_experiment
from .layout_file import LAYOUT, to_json
from .options import RunOptions
from .parallel_runner import Together
from .records import KIND, Records, check_names, fingerprint, read_json, read_records
from .run_context import RunContext

SPENT = "seconds.json"
# In a run's folder: its last attempt found too little memory.
RAN_OUT = "ran-out-of-memory"


@dataclass(frozen=True)
class RunPlan:
    """What of an experiment is asked for, and what of that has no record."""

    path: Path
    name: str
    experiment: Experiment
    seeds: Sequence[int]
    folder: Path
    """Of the records."""
    prints: Mapping[str, str]
    runs: Sequence[Run]
    """All of the experiment's."""
    chosen: Sequence[Run]
    todo: Sequence[Run]
    before: Records

    def __str__(self) -> str:
        recorded = len(self.chosen) - len(self.todo)
        return f"{len(self.chosen)} runs, {recorded} have a record."


def plan_runs(path: Path, options: RunOptions) -> RunPlan:
    (plan,) = plan_all([path], options)
    return plan


def plan_all(paths: Sequence[Path], options: RunOptions) -> list[RunPlan]:
    """Of several experiments, which what is asked for may be in any of."""
    plans = [_plan(path, options) for path in paths]
    names = [plan.name for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} was given twice, or two experiments are called so: give one.")
    for word in options.only:
        if not any(_named(run, [word]) for plan in plans for run in plan.runs):
            have = "has" if len(plans) == 1 else "have"
            arms = ", ".join(dict.fromkeys(run.arm for plan in plans for run in plan.runs))
            said = f"{', '.join(names)} {have} no arm or run {word!r}"
            raise ValueError(f"{said}: {'its' if len(plans) == 1 else 'their'} arms are {arms}.")
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
    prints = {run.name: fingerprint(name, options.scale, run) for run in runs}
    chosen = chosen_runs(runs, options.only)
    before = read_records(folder)
    todo = [
        run
        for run in chosen
        if not _recorded(before, run, prints) or (options.again and _named(run, options.only))
    ]
    return RunPlan(path, name, experiment, seeds, folder, prints, runs, chosen, todo, before)


def run_experiment(path: Path, options: RunOptions, console: Console | None = None) -> Records:
    """Make the records that are missing; returns all there are."""
    (found,) = run_experiments([path], options, console)
    return found


def run_experiments(
    paths: Sequence[Path], options: RunOptions, console: Console | None = None
) -> list[Records]:
    """Those of several experiments, which share the device."""
    console = console or Console(highlight=False)
    plans = plan_all(paths, options)
    for plan in plans:
        console.print(f"{plan.name}, {options.scale}: {plan}")
        if options.list:
            for run in plan.chosen:
                console.print(f"  {run.name}  {'to run' if run in plan.todo else 'recorded'}")
            # A report cannot be made of records without it.
            if plan.before.found and not (plan.folder / LAYOUT).exists():
                _write_layout(plan, options)
                console.print(f"  {LAYOUT} was missing beside the records: it is written.")
    if options.list:
        return [plan.before for plan in plans]
    for plan in plans:
        for place, flag in ((plan.folder, "--results"), (options.output, "--output")):
            make_folder(place, flag)
        _write_layout(plan, options)
    keepers = [JobSupervisor(plan, options, console) for plan in plans]
    for keeper in keepers:
        keeper.tidy()
    total = sum(len(plan.todo) for plan in plans)
    if options.together > 1 and total > 1:
        Together(keepers, options, console).carry_out()
    else:
        _one_by_one(keepers, total, console)
    _tell_failures(keepers, total)
    return [read_records(plan.folder) for plan in plans]


def _write_layout(plan: RunPlan, options: RunOptions) -> None:
    write_record(plan.folder / LAYOUT, to_json(plan.name, options.scale, plan.experiment))


def _one_by_one(keepers: Sequence["JobSupervisor"], total: int, console: Console) -> None:
    number = 0
    for keeper in keepers:
        for run in keeper.plan.todo:
            number += 1
            console.rule(f"{run.name} ({number} of {total})", align="left")
            keeper.do(run)


def _tell_failures(keepers: Sequence["JobSupervisor"], total: int) -> None:
    failed = [f"{name}: {why}" for keeper in keepers for name, why in keeper.failed.items()]
    if failed:
        raise ValueError(
            f"{len(failed)} of {total} runs failed ({'; '.join(failed)}): the same command goes on "
            "from there."
        )


def chosen_runs(runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    """The runs of the arms that were named, with those they come after."""
    wanted = {run.name for run in runs if _named(run, only)}
    for run in reversed(runs):
        if run.name in wanted:
            wanted |= set(run.after)
    return [run for run in runs if run.name in wanted]


def _named(run: Run, only: Sequence[str]) -> bool:
    """Asked for, not only needed."""
    names = (run.arm, run.name)
    return not only or any(word in names or _alike(names, word) for word in only)


def _alike(names: Sequence[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _recorded(records: Records, run: Run, prints: Mapping[str, str]) -> bool:
    found = records.found.get(run.name)
    return found is not None and found["fingerprint"] == prints[run.name]


class JobSupervisor:
    """Does the runs of one experiment, and knows what became of them."""

    def __init__(self, plan: RunPlan, options: RunOptions, console: Console) -> None:
        self.plan, self.options, self.console = plan, options, console
        waiting = {run.name for run in plan.todo}
        self.recorded = {
            run.name
            for run in plan.runs
            if run.name not in waiting and _recorded(plan.before, run, plan.prints)
        }
        self.failed: dict[str, str] = {}

    def lacks(self, run: Run) -> bool:
        """Whether what it needs has failed, and so it has too."""
        lacking = [name for name in run.after if name in self.failed]
        if lacking:
            self.failed[run.name] = f"needs {lacking[0]}"
        return bool(lacking)

    def do(self, run: Run) -> None:
        if self.lacks(run):
            return
        folder = self.folder_of(run)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / RAN_OUT).unlink(missing_ok=True)
            write_record(self.plan.folder / f"{run.name}.json", self._done(run))
            self.has_record(run)
        except (ValueError, OSError, FloatingPointError, torch.OutOfMemoryError) as error:
            self.failed[run.name] = str(error)
            if isinstance(error, torch.OutOfMemoryError):
                (folder / RAN_OUT).touch()
            self.console.print(f"{run.name} failed: {error}", style="bold")
        except Exception as error:
            # An error of the experiment or of ours: where it was is of use, and others go on.
            self.failed[run.name] = f"{type(error).__name__}: {error}"
            self.console.print_exception()

    def has_record(self, run: Run) -> None:
        self.recorded.add(run.name)
        self.tidy()

    def ran_out_of_memory(self, run: Run) -> bool:
        return (self.folder_of(run) / RAN_OUT).exists()

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
        place = self.options.output / self.plan.name / self.options.scale
        return place / f"{name}-{self.plan.prints[name][:8]}"

    def _done(self, run: Run) -> dict[str, Any]:
        """Do a run; its record."""
        device = choose_device(self.options.device)
        work = self._work(run)
        spent = _Spent(work.folder / SPENT)
        with PeakMemory(device) as memory, spent:
            measures = dict(run.do(work))
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
            "fingerprint": self.plan.prints[run.name],
            "measures": measures,
            "curves": curves,
            "notes": notes,
            "data": work.texts,
            "seconds": round(spent.seconds, 1),
            "peak_memory": memory.result,
            "provenance": provenance(device),
        }

    def _work(self, run: Run) -> RunContext:
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


class _Spent:
    """Seconds of all attempts, but for those that were killed outright."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before = json.loads(path.read_text())["seconds"] if path.exists() else 0.0
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.seconds = self.before + time.perf_counter() - self.started
        write_record(self.path, {"seconds": self.seconds})
