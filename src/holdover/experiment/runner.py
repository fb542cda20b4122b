"""Runs of an experiment: those without a record, one after the other or several processes at a time.

* A record is written when its run has ended, as a whole; an interrupted run leaves its folder, and goes
  on there the next time.
* Other settings are another run with another folder: nothing is continued that was begun differently.
* A run that fails does not stop those that do not need it; all failures are named at the end.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..evaluate.cost import PeakMemory
from ..results import choose_device, make_folder, provenance, write_record
from .definition import Experiment, Run
from .layout_file import LAYOUT, to_json
from .opening import open_experiment
from .options import RunOptions
from .records import KIND, Records, check_names, fingerprint, read_json, read_records
from .work import Work

# Seconds between looks at processes.
PATIENCE = 0.2
SPENT = "seconds.json"


@dataclass(frozen=True)
class Plan:
    """What of an experiment is asked for, and what of that has no record."""

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


def plan_runs(path: Path, options: RunOptions) -> Plan:
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
    chosen = chosen_runs(name, runs, options.only)
    before = read_records(folder)
    todo = [
        run
        for run in chosen
        if not _recorded(before, run, prints) or (options.again and _named(run, options.only))
    ]
    return Plan(name, experiment, seeds, folder, prints, runs, chosen, todo, before)


def run_experiment(path: Path, options: RunOptions, console: Console | None = None) -> Records:
    """Make the records that are missing; returns all there are."""
    console = console or Console(highlight=False)
    plan = plan_runs(path, options)
    console.print(f"{plan.name}, {options.scale}: {plan}")
    if options.list:
        for run in plan.chosen:
            console.print(f"  {run.name}  {'to run' if run in plan.todo else 'recorded'}")
        return plan.before
    for place, flag in ((plan.folder, "--results"), (options.output, "--output")):
        make_folder(place, flag)
    write_record(plan.folder / LAYOUT, to_json(plan.name, options.scale, plan.experiment))
    _Keeper(path, plan, options, console).carry_out(plan.todo)
    return read_records(plan.folder)


def chosen_runs(name: str, runs: Sequence[Run], only: Sequence[str]) -> list[Run]:
    """The runs of the arms that were named, with those they come after."""
    if not only:
        return list(runs)
    for word in only:
        if not any(_named(run, [word]) for run in runs):
            arms = ", ".join(dict.fromkeys(run.arm for run in runs))
            raise ValueError(f"{name} has no arm or run {word!r}: its arms are {arms}.")
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


class _Keeper:
    """Carries runs out."""

    def __init__(self, path: Path, plan: Plan, options: RunOptions, console: Console) -> None:
        self.path, self.options, self.console = path, options, console
        self.name, self.seeds = plan.name, plan.seeds
        self.folder, self.prints, self.runs = plan.folder, plan.prints, plan.runs
        waiting = {run.name for run in plan.todo}
        self.recorded = {
            run.name
            for run in plan.runs
            if run.name not in waiting and _recorded(plan.before, run, plan.prints)
        }
        self.failed: dict[str, str] = {}

    def carry_out(self, runs: Sequence[Run]) -> None:
        self._tidy()
        if self.options.together > 1 and len(runs) > 1:
            self._side_by_side(list(runs))
        else:
            for number, run in enumerate(runs, 1):
                self.console.rule(f"{run.name} ({number} of {len(runs)})", align="left")
                self._one(run)
        if self.failed:
            told = "; ".join(f"{name}: {why}" for name, why in self.failed.items())
            raise ValueError(
                f"{len(self.failed)} of {len(runs)} runs failed ({told}): the same command goes on "
                "from there."
            )

    def _one(self, run: Run) -> None:
        lacking = [name for name in run.after if name in self.failed]
        if lacking:
            self.failed[run.name] = f"needs {lacking[0]}"
            return
        try:
            write_record(self.folder / f"{run.name}.json", self._done(run))
            self._has_record(run.name)
        except (ValueError, OSError, FloatingPointError, torch.OutOfMemoryError) as error:
            self.failed[run.name] = str(error)
            self.console.print(f"{run.name} failed: {error}", style="bold")
        except Exception as error:
            # An error of the experiment or of ours: where it was is of use, and others go on.
            self.failed[run.name] = f"{type(error).__name__}: {error}"
            self.console.print_exception()

    def _has_record(self, name: str) -> None:
        self.recorded.add(name)
        self._tidy()

    def _tidy(self) -> None:
        if not self.options.tidy:
            return
        needed = {one for run in self.runs if run.name not in self.recorded for one in run.after}
        for one in self.recorded - needed:
            shutil.rmtree(self._folder_of(one), ignore_errors=True)

    def _done(self, run: Run) -> dict[str, Any]:
        """Do a run; its record."""
        device = choose_device(self.options.device)
        work = self._work(run)
        work.folder.mkdir(parents=True, exist_ok=True)
        spent = _Spent(work.folder / SPENT)
        with PeakMemory(device) as memory, spent:
            measures = dict(run.do(work))
        curves = measures.pop("curves", {})
        notes = measures.pop("notes", [])
        return {
            "record": KIND,
            "experiment": self.name,
            "scale": self.options.scale,
            "run": run.name,
            "arm": run.arm,
            "seed": run.seed,
            "settings": run.settings,
            "fingerprint": self.prints[run.name],
            "measures": measures,
            "curves": curves,
            "notes": notes,
            "data": work.texts,
            "seconds": round(spent.seconds, 1),
            "peak_memory": memory.result,
            "provenance": provenance(device),
        }

    def _work(self, run: Run) -> Work:
        options = self.options
        common = {key: getattr(options, key) for key in ("data_dir", "cache_dir", "device")}
        return Work(
            self._folder_of(run.name),
            run.settings,
            run.seed,
            {name: self._folder_of(name) for name in run.after},
            {name: read_json(self.folder / f"{name}.json")["measures"] for name in run.after},
            self.console,
            {key: value for key, value in common.items() if value is not None},
        )

    def _folder_of(self, name: str) -> Path:
        place = self.options.output / self.name / self.options.scale
        return place / f"{name}-{self.prints[name][:8]}"

    def _side_by_side(self, waiting: list[Run]) -> None:
        running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._keep_going(waiting, running)
        finally:
            # Whatever ends this process ends those, which save themselves first.
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()

    def _keep_going(
        self, waiting: list[Run], running: dict[str, "subprocess.Popen[bytes]"]
    ) -> None:
        total, ended = len(waiting), 0
        alone = {run.name for run in waiting if run.alone}
        while waiting or running:
            unfinished = {run.name for run in waiting} | set(running)
            ready = [run for run in waiting if not unfinished & set(run.after)]
            for run in ready:
                full = len(running) >= self.options.together
                if full or alone & set(running) or (run.alone and running):
                    continue
                waiting.remove(run)
                lacking = [name for name in run.after if name in self.failed]
                if lacking:
                    self.failed[run.name] = f"needs {lacking[0]}"
                    continue
                running[run.name] = self._start(run)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    ended += 1
                    if process.returncode != 0:
                        self.failed[name] = f"see {self._folder_of(name)}.log"
                    else:
                        self._has_record(name)
                    said = "failed" if name in self.failed else "done"
                    self.console.print(f"{ended} of {total}: {name} {said}")
            time.sleep(PATIENCE)

    def _start(self, run: Run) -> subprocess.Popen[bytes]:
        options = self.options
        words = ["run", str(self.path), "--scale", options.scale, "--only", run.name]
        words += ["--seeds", ",".join(map(str, self.seeds)), "--results", str(options.results)]
        words += ["--output", str(options.output), "--device", options.device]
        words += ["--again"] if options.again else []
        for key in ("data_dir", "cache_dir"):
            if getattr(options, key) is not None:
                words += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
        log = self._folder_of(run.name).with_name(f"{self._folder_of(run.name).name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "holdover", *words]
        with log.open("ab") as said:
            return subprocess.Popen(command, stdout=said, stderr=said, env=self._environment())

    def _environment(self) -> dict[str, str]:
        """Processes that took every core each would wait for each other's threads at every product."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, (cores or 1) // self.options.together)
        return {"OMP_NUM_THREADS": str(threads), **os.environ}


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
