"""Runs of one or several experiments side by side, each in a process of its own.

On one GPU they share its memory, and what each will take nobody knows before. A run that finds too
little is done again later, with half as many beside it, and goes on from its last checkpoint.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from .definition import Run
from .options import RunOptions

if TYPE_CHECKING:
    from .runner import JobSupervisor

# Seconds between looks at processes.
PATIENCE = 0.2


@dataclass
class Job:
    keeper: "JobSupervisor"
    run: Run
    most: int
    """Runs at a time while it is one of them."""
    process: "subprocess.Popen[bytes] | None" = None
    beside: int = 0
    """Most others that ran at the same time."""

    @property
    def key(self) -> tuple[str, str]:
        return self.keeper.plan.name, self.run.name

    @property
    def needs(self) -> set[tuple[str, str]]:
        return {(self.keeper.plan.name, name) for name in self.run.after}


class Together:
    def __init__(
        self, keepers: Sequence["JobSupervisor"], options: RunOptions, console: Console
    ) -> None:
        self.options, self.console = options, console
        self.waiting = [
            Job(keeper, run, options.together) for keeper in keepers for run in keeper.plan.todo
        ]
        self.running: list[Job] = []
        self.total, self.ended = len(self.waiting), 0
        self.several = len(keepers) > 1

    def carry_out(self) -> None:
        try:
            while self.waiting or self.running:
                for job in self._ready():
                    self._begin(job)
                for job in [job for job in self.running if _has_ended(job)]:
                    self._end(job)
                time.sleep(PATIENCE)
        finally:
            # Whatever ends this process ends those, which save themselves first.
            processes = [job.process for job in self.running if job.process is not None]
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()

    def _ready(self) -> Iterator[Job]:
        """Those that wait for nothing, as long as there is room for another."""
        unfinished = {job.key for job in (*self.waiting, *self.running)}
        for job in list(self.waiting):
            room = min(one.most for one in (job, *self.running))
            apart = self.running and any(one.run.alone for one in (job, *self.running))
            if not unfinished & job.needs and len(self.running) < room and not apart:
                yield job

    def _begin(self, job: Job) -> None:
        self.waiting.remove(job)
        if job.keeper.lacks(job.run):
            return
        job.process, job.beside = self._start(job), 0
        self.running.append(job)
        for one in self.running:
            one.beside = max(one.beside, len(self.running) - 1)

    def _end(self, job: Job) -> None:
        self.running.remove(job)
        keeper, run = job.keeper, job.run
        name = f"{keeper.plan.name}: {run.name}" if self.several else run.name
        assert job.process is not None
        if job.process.returncode == 0:
            keeper.has_record(run)
            said = "done"
        elif job.beside and keeper.ran_out_of_memory(run):
            job.most = (job.beside + 1) // 2
            self.waiting.append(job)
            said = f"there was too little memory for {name}: later, beside fewer"
            self.console.print(said)
            return
        else:
            keeper.failed[run.name] = f"see {keeper.folder_of(run)}.log"
            said = "failed"
        self.ended += 1
        self.console.print(f"{self.ended} of {self.total}: {name} {said}")

    def _start(self, job: Job) -> "subprocess.Popen[bytes]":
        options, plan, run = self.options, job.keeper.plan, job.run
        words = ["run", str(plan.path), "--scale", options.scale, "--only", run.name]
        words += ["--seeds", ",".join(map(str, plan.seeds)), "--results", str(options.results)]
        words += ["--output", str(options.output), "--device", options.device]
        words += ["--again"] if options.again else []
        for key in ("data_dir", "cache_dir"):
            if getattr(options, key) is not None:
                words += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
        folder = job.keeper.folder_of(run)
        log = folder.with_name(f"{folder.name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "holdover", *words]
        with log.open("ab") as said:
            return subprocess.Popen(command, stdout=said, stderr=said, env=self._environment())

    def _environment(self) -> dict[str, str]:
        """Processes that took every core each would wait for each other's threads at every product."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, (cores or 1) // self.options.together)
        return {"OMP_NUM_THREADS": str(threads), **os.environ}


def _has_ended(job: Job) -> bool:
    return job.process is not None and job.process.poll() is not None
