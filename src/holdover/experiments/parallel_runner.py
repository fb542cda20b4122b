"""Runs of one or several experiments in parallel, each in its own process.

On one GPU the runs share its memory, and nobody knows in advance how much each needs. A run that finds
too little memory is repeated later with half as many others, and continues from its last checkpoint.
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

POLL_SECONDS = 0.2


@dataclass
class Job:
    supervisor: "JobSupervisor"
    run: Run
    limit: int
    """The most runs at a time while this is one of them."""
    process: "subprocess.Popen[bytes] | None" = None
    others: int = 0
    """The most other runs at the same time."""

    @property
    def key(self) -> tuple[str, str]:
        return self.supervisor.plan.name, self.run.name

    @property
    def needs(self) -> set[tuple[str, str]]:
        return {(self.supervisor.plan.name, name) for name in self.run.after}


class ParallelRunner:
    def __init__(
        self, supervisors: Sequence["JobSupervisor"], options: RunOptions, console: Console
    ) -> None:
        self.options, self.console = options, console
        self.waiting = [
            Job(supervisor, run, options.together)
            for supervisor in supervisors
            for run in supervisor.plan.todo
        ]
        self.running: list[Job] = []
        self.total, self.ended = len(self.waiting), 0
        self.several = len(supervisors) > 1

    def run_all(self) -> None:
        try:
            while self.waiting or self.running:
                for job in self._ready():
                    self._begin(job)
                for job in [job for job in self.running if _has_ended(job)]:
                    self._end(job)
                time.sleep(POLL_SECONDS)
        finally:
            # When this process ends, the runs end too; they save themselves first.
            processes = [job.process for job in self.running if job.process is not None]
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()

    def _ready(self) -> Iterator[Job]:
        """Jobs that wait for no other, as long as there is room for one more."""
        unfinished = {job.key for job in (*self.waiting, *self.running)}
        for job in list(self.waiting):
            room = min(one.limit for one in (job, *self.running))
            apart = self.running and any(one.run.alone for one in (job, *self.running))
            if not unfinished & job.needs and len(self.running) < room and not apart:
                yield job

    def _begin(self, job: Job) -> None:
        self.waiting.remove(job)
        if job.supervisor.needs_failed(job.run):
            return
        job.process, job.others = self._start(job), 0
        self.running.append(job)
        for one in self.running:
            one.others = max(one.others, len(self.running) - 1)

    def _end(self, job: Job) -> None:
        self.running.remove(job)
        supervisor, run = job.supervisor, job.run
        name = f"{supervisor.plan.name}: {run.name}" if self.several else run.name
        assert job.process is not None
        if job.process.returncode == 0:
            supervisor.mark_recorded(run)
            result = "done"
        elif job.others and supervisor.ran_out_of_memory(run):
            job.limit = (job.others + 1) // 2
            self.waiting.append(job)
            self.console.print(
                f"{name} found too little memory: it is repeated later, with fewer others"
            )
            return
        else:
            supervisor.failed[run.name] = f"see {supervisor.folder_of(run)}.log"
            result = "failed"
        self.ended += 1
        self.console.print(f"{self.ended} of {self.total}: {name} {result}")

    def _start(self, job: Job) -> "subprocess.Popen[bytes]":
        options, plan, run = self.options, job.supervisor.plan, job.run
        words = ["run", str(plan.path), "--scale", options.scale, "--only", run.name]
        words += ["--seeds", ",".join(map(str, plan.seeds)), "--results", str(options.results)]
        words += ["--output", str(options.output), "--device", options.device]
        words += ["--again"] if options.again else []
        for key in ("data_dir", "cache_dir"):
            if getattr(options, key) is not None:
                words += [f"--{key.replace('_', '-')}", str(getattr(options, key))]
        folder = job.supervisor.folder_of(run)
        path = folder.with_name(f"{folder.name}.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "holdover", *words]
        with path.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environment())

    def _environment(self) -> dict[str, str]:
        """Processes that each took every core would wait for each other's threads at every product."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, (cores or 1) // self.options.together)
        return {"OMP_NUM_THREADS": str(threads), **os.environ}


def _has_ended(job: Job) -> bool:
    return job.process is not None and job.process.poll() is not None
