"""holdover train --processes: signals and lost processes, and what is said of them."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from holdover.cli import entry as cli
from runs import command, losses_of, refusal, train, write_documents

SECONDS = 60.0
STEPS = {"rows": 3, "max_steps": 70, "epochs": 99, "save_every": 5, "validate_every": 10**6}


def processes_started() -> dict[int, psutil.Process]:
    """By their number, those that this test's process has started."""
    found = {}
    for child in psutil.Process().children():
        try:
            number = child.environ().get("RANK")
        except psutil.Error:
            continue
        if number is not None:
            found[int(number)] = child
    return found


def send(number: signal.Signals, to: int, run: Path, lines: int) -> threading.Thread:
    """Send a signal to one of the processes when the run's log has so many lines."""

    def work() -> None:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            log = run / "log.jsonl"
            if log.exists() and log.read_bytes().count(b"\n") >= lines:
                os.kill(processes_started()[to].pid, number)
                return
            time.sleep(0.005)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    source = Path(__file__).parents[2] / "src"
    monkeypatch.setenv("PYTHONPATH", str(source))
    write_documents(tmp_path / "text.txt", count=9, words=30)
    return tmp_path


def test_one_that_is_signalled_stops_all_and_one_that_is_lost_ends_all(folder, capfd):
    run, alone = folder / "run", folder / "alone"
    arguments = command(folder, output=run, processes=2, **STEPS)
    sender = send(signal.SIGUSR1, 1, run, lines=8)
    assert cli.main(arguments) == 130
    sender.join()
    said = capfd.readouterr()
    stopped = len(losses_of(run))
    assert 8 <= stopped < STEPS["max_steps"] - 20
    assert f"SIGUSR1: stopped after step {stopped}; continue with --resume." in said.out
    assert not processes_started()

    sender = send(signal.SIGKILL, 1, run, lines=stopped + 8)
    assert cli.main([*arguments, "--resume"]) == 2
    sender.join()
    said = capfd.readouterr()
    assert f"Continuing after step {stopped} " in said.out
    assert "holdover: Process 1 of 2 was killed by SIGKILL" in said.err
    assert "--resume continues from the last checkpoint" in said.err
    assert f"Its last lines ({run / 'processes' / '1.log'}):" in said.err
    assert not processes_started()

    train(folder, "--resume", output=run, processes=1, **STEPS)
    train(folder, output=alone, **STEPS)
    # Two processes add in another order than one, and 70 steps of Adam enlarge that, on each kind of
    # CPU in its own way (1.1e-5 seen). A step lost or made twice would change losses by a hundredth.
    assert losses_of(run) == pytest.approx(losses_of(alone), abs=1e-4)


def test_what_cannot_be_shared_is_refused_before_anything_is_started(folder, capsys):
    said = refusal(capsys, command(folder, rows=1, processes=2))
    assert "--rows 1 cannot be dealt out to 2 processes" in said
    assert not (folder / "run").exists()
