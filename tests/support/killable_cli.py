"""A process that imports holdover once and then runs the command line in many forks that can be killed.

Every request, a JSON line on stdin, forks a process that runs the command line. It can be killed by a
signal when its log has a given number of lines, or by its own SIGKILL at a named place of the program.
The places are made here by wrapping functions from outside; the program does not contain them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Seconds; a command that takes longer has failed.
LONGEST = 60.0


class KillableCLI:
    """The side of the tests: sends requests to the process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        )

    def run(
        self,
        arguments: list[str],
        *,
        place: tuple[str, int] | None = None,
        sent: tuple[int, Path, int, float] | None = None,
    ) -> dict[str, Any]:
        """The exit code of a command (negative: the signal that killed it), and its output.

        place: kill it the n-th time it passes there. sent: (signal, run, lines, seconds): send a signal
        that many seconds after the run's log has that many lines.
        """
        request = {"arguments": arguments, "place": place, "sent": None}
        if sent is not None:
            request["sent"] = [sent[0], str(sent[1] / "log.jsonl"), *sent[2:]]
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=LONGEST)
        self._process.stdout.close()


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(LONGEST)


def dying(
    owner: Any,
    name: str,
    call: int,
    last_act: Callable[..., None] = die,
    counts: Callable[..., bool] = lambda *_: True,
) -> None:
    """Kill the process in the n-th call of a function, after `last_act`."""
    original, seen = getattr(owner, name), 0

    def until_then(*arguments: Any, **named: Any) -> Any:
        nonlocal seen
        seen += counts(*arguments)
        if seen == call and counts(*arguments):
            last_act(*arguments)
            die()
        return original(*arguments, **named)

    setattr(owner, name, until_then)


def prepare_to_die(place: str, call: int) -> None:
    from holdover.language.task import LanguageModelling
    from holdover.training import checkpoint, loop
    from holdover.training.log import Log

    def half_a_file(tensors: Any, path: Path) -> None:
        from safetensors.torch import save

        content = save(tensors)
        path.write_bytes(content[: len(content) // 2])

    def half_a_line(log: Log, **_: Any) -> None:
        with open(log.path, "a") as file:
            file.write('{"step": 5, "tok')

    def half_a_folder(path: Path, *_: Any) -> None:
        sorted(path.iterdir())[0].unlink()

    def is_checkpoint(path: Any, *_: Any) -> bool:
        return "checkpoint-" in Path(path).name

    def arrives(path: Path, target: Any) -> bool:
        return Path(target).name.startswith("checkpoint-")

    def is_best_link(path: Any, *_: Any) -> bool:
        return Path(path).name == ".partial-best"

    places: dict[str, Callable[[], None]] = {
        "before its first validation": lambda: dying(LanguageModelling, "validate", call),
        "between the files of a checkpoint": lambda: dying(checkpoint, "save_file", call),
        "within a file of a checkpoint": lambda: dying(checkpoint, "save_file", call, half_a_file),
        "before a checkpoint gets its name": lambda: dying(Path, "rename", call, counts=arrives),
        "before the best is linked": lambda: dying(checkpoint.Checkpoints, "mark_best", call),
        "while the best is linked": lambda: dying(os, "replace", call, counts=is_best_link),
        "while an old checkpoint is removed": lambda: dying(
            shutil, "rmtree", call, half_a_folder, counts=is_checkpoint
        ),
        "within a line of the log": lambda: dying(Log, "write", call, half_a_line),
        "while it is continued": lambda: dying(loop, "restore_random_state", call),
    }
    places[place]()


def run_in_fork(request: dict[str, Any]) -> dict[str, Any]:
    printed = Path(tempfile.gettempdir()) / f"holdover-cli-{os.getpid()}.txt"
    process = os.fork()
    if process == 0:
        run_and_exit(request, printed)
    status, begun, sent_at = 0, time.monotonic(), None
    sent = request["sent"]
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        now = time.monotonic()
        if now - begun > LONGEST:
            os.kill(process, signal.SIGKILL)
        elif sent is not None:
            number, log, lines, seconds = sent
            if sent_at is None and lines_of(log) >= lines:
                sent_at = now + seconds
            if sent_at is not None and now >= sent_at:
                os.kill(process, number)
                sent = None
        time.sleep(0.002)
    output = printed.read_text()
    printed.unlink()
    return {"code": os.waitstatus_to_exitcode(status), "output": output}


def lines_of(path: str) -> int:
    return Path(path).read_bytes().count(b"\n") if os.path.exists(path) else 0


def run_and_exit(request: dict[str, Any], printed: Path) -> None:
    code = 70
    try:
        into = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(into, 1)
        os.dup2(into, 2)
        from holdover.cli import entry as cli

        if request["place"] is not None:
            prepare_to_die(*request["place"])
        code = cli.main(request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    import torch

    # What every life begins with.
    import holdover.language.training  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        answer = run_in_fork(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
