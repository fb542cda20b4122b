"""Starts and ends the processes of `holdover train --processes N` on this machine.

* The first process has the terminal. The output of the others goes to RUN/processes/NUMBER.log.
* If one process is lost, all end, with one message that names it and shows its last lines.
* Signals are passed on: the processes agree on a step, save, and stop. If the starter itself is lost,
  their standard input ends, and they do the same.
* Importing this module does not import torch: every command asks it for the number of processes.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .provenance import make_folder

# Exit codes of a process: refused with a message, interrupted, or stopped because another was lost.
REFUSED, INTERRUPTED, LOST_ANOTHER = 2, 130, 3
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
LOGS = "processes"
# Environment variable of the processes that are started here.
STARTED_BY_US = "HOLDOVER_STARTED"
# Seconds that the others have to end by themselves when one is lost.
GRACE = 5.0
SECONDS_BETWEEN_POLLS = 0.05
LAST_LINES = 15


class FailedElsewhereError(Exception):
    """Another process failed and has printed the reason."""


def started_processes() -> int:
    """The number of processes that a launcher says it has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass
class _Process:
    number: int
    process: "subprocess.Popen[bytes]"
    log: Path | None = None
    # Where this process's lines begin in a log that earlier runs may have written to.
    offset: int = field(default=0)

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def last_lines(self) -> str:
        if self.log is None:
            return " Its output is above."
        with open(self.log, "rb") as file:
            file.seek(self.offset)
            lines = file.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        shown = "".join(f"\n    {line}" for line in lines) or " none"
        return f" Its last lines ({self.log}):{shown}"


def is_to_start(processes: int) -> bool:
    """Whether this process should start the others: it is not one of them itself."""
    return processes > 1 and started_processes() == 1 and STARTED_BY_US not in os.environ


def start(arguments: Sequence[str], processes: int, folder: Path) -> int:
    """Run `holdover ARGUMENTS` in several processes; return when all have ended.

    Returns the exit code of the first if it explains the end; otherwise raises ChildProcessError.
    """
    from torch.distributed import TCPStore

    make_folder(folder / LOGS)
    # Opened here, so that the port is free and the processes may start in any order.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ExitStack() as open_files:
        workers = [
            _start_one(number, arguments, processes, folder / LOGS, store.port, open_files)
            for number in range(processes)
        ]
        before = {number: signal.signal(number, _pass_on(workers)) for number in PASSED_ON}
        try:
            codes = _wait(workers)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            _end(workers)
    return _result(workers, codes, folder)


def _start_one(
    number: int, arguments: Sequence[str], processes: int, logs: Path, port: int, files: ExitStack
) -> _Process:
    threads = str(max((os.cpu_count() or 1) // processes, 1))
    environment = {
        "OMP_NUM_THREADS": threads,
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        STARTED_BY_US: "1",
    }
    log, offset = None, 0
    output: IO[bytes] | None = None
    if number:
        log = logs / f"{number}.log"
        output = files.enter_context(log.open("ab"))
        offset = output.tell()
    process = subprocess.Popen(
        [sys.executable, "-m", "holdover", *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        # A terminal's interrupt reaches only the starter, which passes it on once.
        start_new_session=True,
    )
    assert process.stdin is not None
    files.enter_context(process.stdin)
    return _Process(number, process, log, offset)


def _pass_on(workers: Sequence[_Process]) -> Any:
    def pass_on(number: int, frame: Any) -> None:
        for worker in workers:
            if worker.code is None:
                worker.process.send_signal(number)

    return pass_on


def _wait(workers: Sequence[_Process]) -> dict[int, int]:
    """Wait for all to end. If some failed, return the exit codes of those that ended by themselves."""
    while True:
        codes = [worker.code for worker in workers]
        if all(code == 0 for code in codes):
            return {}
        if any(code not in (None, 0) for code in codes):
            break
        time.sleep(SECONDS_BETWEEN_POLLS)
    # Most notice the loss by themselves, or were stopped by the same signal.
    end = time.monotonic() + GRACE
    while time.monotonic() < end and any(worker.code is None for worker in workers):
        time.sleep(SECONDS_BETWEEN_POLLS)
    codes = {worker.number: worker.code for worker in workers}
    return {number: code for number, code in codes.items() if code is not None}


def _end(workers: Sequence[_Process]) -> None:
    for worker in workers:
        if worker.code is None:
            worker.process.kill()
        worker.process.wait()


def _result(workers: Sequence[_Process], codes: dict[int, int], folder: Path) -> int:
    if not codes:
        return 0
    if codes.get(0) in (REFUSED, INTERRUPTED):
        # It has the terminal and has printed the reason.
        return codes[0]

    def order(number: int) -> int:
        """A process that was killed or failed comes before those that only noticed it."""
        return {LOST_ANOTHER: 1, INTERRUPTED: 2, 0: 3}.get(codes[number], 0)

    worker = workers[min(codes, key=order)]
    code = codes[worker.number]
    end = f"ended with exit code {code}"
    if code < 0:
        end = f"was killed by {signal.Signals(-code).name}"
    raise ChildProcessError(
        f"Process {worker.number} of {len(workers)} {end}, and the others were stopped; --resume "
        f"continues from the last checkpoint in {folder}.{worker.last_lines()}"
    )


def end_with_starter() -> None:
    """In a process that was started here: stop and save when the starter is gone."""
    if STARTED_BY_US not in os.environ:
        return

    def watch() -> None:
        # Returns when the starter, which holds the other end, is gone.
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="holdover-watch", daemon=True).start()
