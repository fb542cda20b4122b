"""What runs inside a job: it starts the command, and speaks between SLURM and the training.

* This file is sent along with the job and read there by itself: it imports nothing of holdover, so
  that no second copy of torch waits beside the training.
* SLURM signals every process of a job, launchers pass signals on, and a training takes the second
  signal for an order to stop at once. So the command ignores what SLURM sends, and is asked to save
  and stop by one SIGUSR1 from here.
* When it has saved, the job is queued again by submitit, under its own number; the command, which
  continues what has begun, is then started again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

# submitit's name for a time limit that comes near, and SLURM's for a job that has to go.
TIME_LIMIT, ENDING = signal.SIGUSR2, signal.SIGTERM
SECONDS_BETWEEN_LOOKS = 0.2


@dataclass
class JobKeeper:
    """The callable that submitit runs once on every node of the job."""

    words: list[str]
    """Of `holdover`."""
    launcher: bool
    """Several processes: torchrun starts them."""
    processes: int
    """On each node."""
    status: str
    """File that says how the job stands, with {id} for its number."""

    def __call__(self) -> None:
        environment = import_module("submitit").JobEnvironment()
        self._note(environment, "running")
        asked: set[int] = set()
        before = {
            number: signal.signal(number, lambda number, frame: asked.add(number))
            for number in (TIME_LIMIT, ENDING)
        }
        code = self._kept(asked, environment)
        for number, handler in before.items():
            signal.signal(number, handler)
        if code == 0:
            self._note(environment, "done", exit_code=0)
        elif asked and (TIME_LIMIT in asked or _still_running(environment.job_id)):
            self._queue_again(environment, before[TIME_LIMIT])
        elif asked:
            # Cancelled, or queued again by SLURM: it knows which.
            self._note(environment, "stopped")
            sys.exit(128 + ENDING)
        else:
            self._note(environment, "failed", exit_code=code)
            sys.exit(code if code > 0 else 128 - code)

    def checkpoint(self) -> Any:
        """What submitit runs when the job has been queued again: the same."""
        return import_module("submitit.helpers").DelayedSubmission(self)

    def _kept(self, asked: set[int], environment: Any) -> int:
        """Start the command, ask it to stop where SLURM wants that, and wait for its end."""
        process = subprocess.Popen(self._command(environment), preexec_fn=_ignore_slurm)
        told = False
        while process.poll() is None:
            if asked and not told:
                workers = _workers(process.pid) if self.launcher else [process.pid]
                for worker in workers:
                    os.kill(worker, signal.SIGUSR1)
                if workers:
                    names = ", ".join(signal.Signals(number).name for number in sorted(asked))
                    print(f"{names} from SLURM: the command is asked to save and stop.", flush=True)
                told = bool(workers)
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return process.returncode

    def _command(self, environment: Any) -> list[str]:
        command = ["-m", "holdover", *self.words]
        if self.launcher:
            launch = ["-m", "torch.distributed.run", "--signals-to-handle", "SIGINT"]
            launch += ["--nproc-per-node", str(self.processes)]
            if environment.num_nodes == 1:
                launch += ["--standalone"]
            else:
                # Jobs that share a node have different numbers, hence different ports.
                port = 20_000 + int(environment.raw_job_id) % 20_000
                launch += ["--nnodes", str(environment.num_nodes)]
                launch += ["--node-rank", str(environment.node)]
                launch += ["--master-addr", environment.hostnames[0], "--master-port", str(port)]
            command = launch + command
        return [sys.executable, *command]

    def _queue_again(self, environment: Any, requeue: Any) -> None:
        self._note(environment, "requeued")
        try:
            requeue(TIME_LIMIT, None)
        except import_module("submitit.core.utils").UncompletedJobError:
            self._note(environment, "failed", why="its time limit came too often (--requeues)")
            sys.exit(1)
        # All but the first node of a job: the first one queues it again.
        sys.exit(0)

    def _note(self, environment: Any, state: str, **more: Any) -> None:
        """Write how the job stands, as the first node sees it."""
        if environment.global_rank != 0:
            return
        path = Path(self.status.format(id=environment.job_id))
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        told = {"state": state, "restarts": restarts, "node": environment.hostname, **more}
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(told) + "\n")
        fresh.replace(path)


def _ignore_slurm() -> None:
    for number in (TIME_LIMIT, ENDING):
        signal.signal(number, signal.SIG_IGN)


def _workers(launcher: int) -> list[int]:
    """The processes that a launcher started, as soon as it has."""
    import psutil

    children = psutil.Process(launcher).children()
    return [child.pid for child in children if "holdover" in child.cmdline()]


def _still_running(job: str) -> bool:
    """Whether SLURM only announced that the job has to go, and left what follows to the job."""
    call = ["scontrol", "--oneliner", "show", "job", job]
    told = subprocess.run(call, capture_output=True, text=True, check=False).stdout
    return "JobState=RUNNING" in told
