"""Runs inside a job: starts the command, and passes SLURM's wishes on to the training.

* This file is sent with the job and loaded there alone. It imports nothing of holdover, so that no
  second copy of torch sits in memory during the training.
* SLURM signals every process of a job, launchers pass signals on, and a training stops at once on the
  second signal. So the command ignores SLURM's signals, and the keeper sends it one SIGUSR1 to save
  and stop.
* After that, submitit queues the job again under the same number, and the same command continues.
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

# submitit's signal before a time limit, and SLURM's signal to end a job.
TIME_LIMIT, ENDING = signal.SIGUSR2, signal.SIGTERM
SECONDS_BETWEEN_POLLS = 0.2


@dataclass
class JobKeeper:
    """The callable that submitit runs once on every node of the job."""

    words: list[str]
    """The command, without `holdover` itself."""
    launcher: bool
    """Whether torchrun starts several processes."""
    processes: int
    """Processes on each node."""
    status: str
    """File for the job's state, with {id} for its number."""

    def __call__(self) -> None:
        environment = import_module("submitit").JobEnvironment()
        self._note(environment, "running")
        received: set[int] = set()
        before = {
            number: signal.signal(number, lambda number, frame: received.add(number))
            for number in (TIME_LIMIT, ENDING)
        }
        code = self._run(received, environment)
        for number, handler in before.items():
            signal.signal(number, handler)
        if code == 0:
            self._note(environment, "done", exit_code=0)
        elif received and (TIME_LIMIT in received or _still_running(environment.job_id)):
            self._queue_again(environment, before[TIME_LIMIT])
        elif received:
            # Either cancelled or queued again; SLURM knows which.
            self._note(environment, "stopped")
            sys.exit(128 + ENDING)
        else:
            self._note(environment, "failed", exit_code=code)
            sys.exit(code if code > 0 else 128 - code)

    def checkpoint(self) -> Any:
        """The callable that submitit runs after the job was queued again: this one."""
        return import_module("submitit.helpers").DelayedSubmission(self)

    def _run(self, received: set[int], environment: Any) -> int:
        """Start the command, ask it to stop if SLURM sends a signal, and wait for its end."""
        process = subprocess.Popen(self._command(environment), preexec_fn=_ignore_slurm)
        notified = False
        while process.poll() is None:
            if received and not notified:
                workers = _workers(process.pid) if self.launcher else [process.pid]
                for worker in workers:
                    os.kill(worker, signal.SIGUSR1)
                if workers:
                    names = ", ".join(signal.Signals(number).name for number in sorted(received))
                    print(f"{names} from SLURM: the command is asked to save and stop.", flush=True)
                notified = bool(workers)
            time.sleep(SECONDS_BETWEEN_POLLS)
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
            self._note(
                environment,
                "failed",
                why="it reached its time limit more often than --requeues allows",
            )
            sys.exit(1)
        # Only reached on the other nodes of a job: the first one queues it again.
        sys.exit(0)

    def _note(self, environment: Any, state: str, **more: Any) -> None:
        """Write the job's state, from its first node."""
        if environment.global_rank != 0:
            return
        path = Path(self.status.format(id=environment.job_id))
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        status = {"state": state, "restarts": restarts, "node": environment.hostname, **more}
        new = path.with_suffix(".new")
        new.write_text(json.dumps(status) + "\n")
        new.replace(path)


def _ignore_slurm() -> None:
    for number in (TIME_LIMIT, ENDING):
        signal.signal(number, signal.SIG_IGN)


def _workers(launcher: int) -> list[int]:
    """The processes that a launcher has started; empty before that."""
    import psutil

    children = psutil.Process(launcher).children()
    return [child.pid for child in children if "holdover" in child.cmdline()]


def _still_running(job: str) -> bool:
    """Whether SLURM only warned the job, which must queue itself again."""
    call = ["scontrol", "--oneliner", "show", "job", job]
    output = subprocess.run(call, capture_output=True, text=True, check=False).stdout
    return "JobState=RUNNING" in output
