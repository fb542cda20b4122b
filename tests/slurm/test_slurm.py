"""Jobs on a real SLURM: sent, requeued, warned of a time limit, swept, followed, cancelled, failed.

`make slurm-test` runs it. All jobs run side by side on a cluster of one node
(tests/support/slurm_cluster.py), and the test ends when the slowest job has ended.
"""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from holdover.cli import entry as cli
from slurm_cluster import PATH, cluster, missing

pytestmark = pytest.mark.slurm

MODEL = "--model gpt2 --from-scratch --shape n_layer=2,n_embd=32,n_head=2,n_positions=64"
DATA = "--tokenizer bytes --data text.txt --window 32 --windows 4 --rows 4 --validation-tokens 2000"
LIMITS = "--epochs 50 --save-every 1000 --log-every 1 --device cpu"
TRAIN = f"train {MODEL} {DATA} {LIMITS}".split()
STEPS = 150
EXPERIMENT = '''
"""Two trainings, and what comes after both."""
from holdover.experiments import Experiment, Layout, Run, last_checkpoint, log_of

SHAPE = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 64}

def train(work):
    folder = work.train(model="gpt2", from_scratch=True, shape=SHAPE, tokenizer="bytes",
        data="text.txt", max_steps=3, validation_tokens=500, recurrence={"window": 32},
        windows=2, rows=2)
    return {"loss": log_of(folder)[-1]["valid_loss"]}

def mean(work):
    return {"mean": sum(found["loss"] for found in work.found.values()) / len(work.found)}

def runs(scale, seeds):
    trained = [Run("trained", train, {}, seed) for seed in seeds]
    return [*trained, Run("mean", mean, {}, 0, tuple(run.name for run in trained))]

EXPERIMENT = Experiment(
    "Tiny", "Do runs wait for one another?", "none", runs, lambda scale: Layout(), {"smoke": (0, 1)}
)
'''


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    lacking = missing()
    if lacking:
        pytest.fail(f"SLURM is not here and could not be installed: {', '.join(lacking)}.")
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HOLDOVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    words = random.Random(0).choices(
        ["river", "stone", "light", "winter", "garden", "letter", "house"], k=20_000
    )
    lines = [" ".join(words[at : at + 12]) for at in range(0, len(words), 12)]
    Path("text.txt").write_text("\n".join(lines))
    Path("tiny.py").write_text(EXPERIMENT)
    with cluster() as settings:
        monkeypatch.setenv("SLURM_CONF", str(settings))
        started: list[subprocess.Popen] = []
        yield started
        for process in started:
            process.kill()
            process.communicate()


def wait_for(true: Callable[[], object], what: str, seconds: float = 150) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"{what} did not happen; {jobs()}"
        time.sleep(0.2)


def submit(*words: str, slurm: str = "time=10", flags: tuple[str, ...] = ()) -> list[str]:
    """Send a command; the numbers of its jobs."""
    before = {job["id"] for job in jobs()}
    asked = ["submit", "--slurm", "partition=cpu", "mem=100M", *slurm.split(), *flags]
    assert cli.main([*asked, "--", *words]) == 0
    return [job["id"] for job in jobs() if job["id"] not in before]


def jobs() -> list[dict]:
    """What `holdover jobs` shows."""
    from holdover.cli.submit import job_rows
    from holdover.slurm.records import read_submissions

    shown = job_rows(read_submissions(Path("runs/jobs")))
    return [{**vars(one), "last": last, "folder": sent.folder} for sent, one, last in shown]


def job(number: str) -> dict:
    (found,) = [one for one in jobs() if one["id"] == number]
    return found


def said(number: str) -> str:
    path = job(number)["folder"] / f"{number}_0_log.out"
    return path.read_text() if path.exists() else ""


def step(run: str) -> int:
    path = Path(run, "log.jsonl")
    return len(path.read_text().splitlines()) if path.exists() else 0


def losses(run: str) -> list[dict]:
    """All that a run logged, but for how long it took."""
    lines = [json.loads(line) for line in Path(run, "log.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")}
        for line in lines
    ]


def training_process(run: str) -> psutil.Process:
    """The process that trains in a folder: the child of the job's keeper."""
    words = ["-m", "holdover", "train", run]
    (found,) = [
        one
        for one in psutil.process_iter(["cmdline"])
        if set(words) <= set(one.info["cmdline"] or ())
    ]
    return found


def ended(number: str) -> bool:
    return job(number)["state"] in ("done", "failed", "cancelled", "lost")


def test_jobs_on_a_real_cluster(slurm, capfd):
    training = [*TRAIN, "--max-steps", str(STEPS), "--output"]
    (limited,) = submit(*training, "runs/limited", slurm="time=1 signal-delay-s=10")
    (preempted,) = submit(*training, "runs/preempted")
    wait_for(lambda: step("runs/limited") > 20, "20 steps of a job with a time limit")
    # It is held until SLURM warns of its time limit, lest a fast machine finishes before: a SIGCONT
    # comes with SLURM's signals.
    training_process("runs/limited").suspend()
    wait_for(lambda: step("runs/preempted") > 20, "20 steps of a job that is preempted")
    subprocess.run(["scontrol", "requeue", preempted], check=True)

    follower = [
        sys.executable,
        "-m",
        "holdover",
        "submit",
        "--follow",
        "--slurm",
        "partition=cpu",
        "--",
    ]
    with open("followed", "w") as out:
        to_the_end = subprocess.Popen([*follower, *training, "runs/undisturbed"], stdout=out)
    endless = [*TRAIN, "--output", "runs/endless", "--max-steps", "1000000"]
    left = subprocess.Popen(
        [*follower, *endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    slurm += [to_the_end, left]
    sweep = submit(
        *[*TRAIN, "--max-steps", "3", "--output", "runs/sweep"],
        flags=("--sweep", "lr=1e-4,3e-4"),
    )
    runs = submit("run", "tiny.py", "--scale", "smoke", "--device", "cpu")
    (failing,) = submit(*[*TRAIN, "--data", "missing.txt", "--output", "runs/failing"])

    # Ctrl-C while following leaves the job alone.
    assert left.stdout is not None
    for line in left.stdout:
        if "step 2/" in line:
            break
    left.send_signal(signal.SIGINT)
    _, told = left.communicate(timeout=30)
    assert left.returncode == 0 and "the jobs go on" in told
    (going,) = [one["id"] for one in jobs() if "endless" in " ".join(words_of(one))]
    assert job(going)["state"] == "running"
    assert cli.main(["jobs", "--cancel", going]) == 0

    # The warning before the time limit.
    wait_for(lambda: "SIGUSR2" in said(limited), "the warning before the time limit", 90)
    numbers = [limited, preempted, *sweep, *runs, failing, going]
    for number in numbers:
        wait_for(lambda number=number: ended(number), f"the end of {number}")
    assert to_the_end.wait(timeout=60) == 0
    assert f"Done: {STEPS} steps were made" in Path("followed").read_text()

    assert len(losses("runs/undisturbed")) == STEPS + 2
    for number, run in ((limited, "runs/limited"), (preempted, "runs/preempted")):
        assert job(number)["state"] == "done" and job(number)["restarts"] == 1
        assert "Continuing after step" in said(number)
        assert losses(run) == losses("runs/undisturbed")
    assert [job(number)["state"] for number in sweep] == ["done", "done"]
    assert [len(losses(f"runs/sweep/lr={lr}")) for lr in ("1e-4", "3e-4")] == [5, 5]
    assert [job(number)["state"] for number in runs] == ["done"] * 3
    assert [job(number)["name"] for number in runs] == [
        "trained-seed0",
        "trained-seed1",
        "mean-seed0",
    ]
    records = Path("results/experiments/tiny/smoke")
    assert (records / "mean-seed0.json").exists() and (records / "trained-seed1.json").exists()
    assert job(failing)["state"] == "failed" and job(failing)["why"] == "exit code 2"
    assert job(failing)["last"].startswith("holdover: ") and "missing.txt" in job(failing)["last"]
    assert job(going)["state"] == "cancelled"
    capfd.readouterr()
    assert cli.main(["jobs"]) == 0
    shown = capfd.readouterr().out
    assert all(state in shown for state in ("done", "failed (exit", "cancelled"))
    assert cli.main(["submit", "--slurm", "partition=nowhere", "--", *training, "runs/x"]) == 2
    assert "invalid partition" in capfd.readouterr().err
    assert not Path("runs/x").exists() and len(jobs()) == len(numbers) + 1


def words_of(one: dict) -> list[str]:
    told = json.loads((one["folder"] / "submission.json").read_text())
    return told["command"]
