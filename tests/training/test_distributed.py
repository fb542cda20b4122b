"""Several processes make the run that one makes: real processes, two of them, on CPUs (gloo)."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forecasts
import readers
from holdover.cli import entry as cli
from runs import (
    checkpoints_of,
    command,
    log_of,
    losses_of,
    timeless,
    weights_of,
    write_documents,
)
from scripts import SUPPORT

WORKER = SUPPORT / "distributed_worker.py"
SECONDS = 120.0
# Documents of different lengths in rows that two processes cannot share evenly.
UNEVEN = {"accumulate": 2, "rows": 3, "max_steps": 8, "epochs": 9, "validate_every": 200}
DROPOUT = "n_layer=2,n_embd=16,n_head=2,n_positions=32,resid_pdrop=0.3"
# Runs of two processes, and which run of one they are to be.
AS_ONE = dict.fromkeys(("copies", "shards", "copies-again", "shards-again"), "copies")
AS_ONE |= {"memory": "memory", "series": "series", "reader": "reader", "reader-shards": "reader"}
ALONE = ("copies", "memory", "series", "reader", "bf16")


def launched(arguments: list[str]) -> str:
    """What a launcher and its processes said; none of them is left behind."""
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    return said


def torchrun(folder: Path, requests: list[list[str]]) -> str:
    path = folder / "requests.json"
    path.write_text(json.dumps(requests))
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return launched([*words, str(WORKER), str(path)])


def accelerate_launch(arguments: list[str]) -> str:
    """With accelerate's own request to shard; port 0 is one that is free."""
    words = ["--use_fsdp", "--fsdp_version", "2", "--num_processes", "2", "--num_machines", "1"]
    words += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    return launched(["-m", "accelerate.commands.launch", *words, "-m", "holdover", *arguments])


def assert_same_run(one: Path, other: Path, within: float = 1e-5) -> None:
    """The same lines in the log and the same last weights, but for rounding."""
    lines, others = timeless(log_of(one)), timeless(log_of(other))
    assert len(lines) == len(others)
    for line, beside in zip(lines, others, strict=True):
        said, beside = ({k: v for k, v in one.items() if v is not None} for one in (line, beside))
        assert said == pytest.approx(beside, abs=within, rel=within)
    assert checkpoints_of(one) == checkpoints_of(other)
    step = checkpoints_of(one)[-1]
    weights, beside = weights_of(one, step), weights_of(other, step)
    assert weights.keys() == beside.keys()
    for name, weight in weights.items():
        # The bias of keys changes no softmax: its gradient is rounding, of which Adam makes full steps.
        if name.endswith("key.bias"):
            continue
        assert weight.allclose(beside[name], atol=10 * within, rtol=10 * within), name


def make_runs(folder: Path) -> None:
    """Runs of two processes, made in one start by torchrun, and the same ones of one."""
    write_documents(folder / "text.txt", count=9, words=30)

    def language(name, **settings):
        return command(folder, output=folder / name, **{**UNEVEN, **settings})

    recomputed = {"recurrence.recompute": "window"}
    dropping = {"shape": DROPOUT, "max_steps": 6, "save_every": 3}
    requests = {
        "copies": language("copies"),
        "shards": language("shards", shard=True),
        "copies-again": language("copies-again", **recomputed),
        "shards-again": language("shards-again", shard=True, **recomputed),
        "memory": language("memory", recurrence="tokens", overlap=2, reset_every=3),
        "bf16": language("bf16", bf16=True, shard=True),
        "half": language("half", max_steps=3),
        "series": forecasts.command(folder, output=folder / "series", rows=7),
        "reader": readers.command(folder, output=folder / "reader", rows=5),
        "reader-shards": readers.command(
            folder, output=folder / "reader-shards", rows=5, shard=True
        ),
        "drop": language("drop", **dropping),
        "drop-half": language("drop-half", **{**dropping, "max_steps": 3}),
    }
    more = language("drop-half", **dropping)
    scored = reading(folder, "memory", "memory-read")
    torchrun(folder, [*requests.values(), [*more, "--resume"], scored])
    assert cli.main(reading(folder, "memory", "memory-read-alone")) == 0
    for name in ALONE:
        alone = [word for word in requests[name] if word != "--shard"]
        alone[alone.index("--output") + 1] = str(folder / f"{name}-alone")
        assert cli.main(alone) == 0


def reading(folder: Path, model: str, output: str) -> list[str]:
    """Arguments of an evaluation."""
    text = ["--data", str(folder / "text.txt"), "--new-document", "^#", "--split", "all"]
    small = ["--rows", "3", "--timed-windows", "2", "--diagnose-windows", "9", "--draws", "100"]
    words = ["eval", "--model", str(folder / model), "--output", str(folder / output), *small]
    return [*words, *text, "--cache-dir", str(folder / "cache"), "--no-plots", "--device", "cpu"]


def check_read(folder: Path) -> None:
    """Scores, classes and states of two processes are those of one."""
    rows = []
    for name in ("memory-read", "memory-read-alone"):
        (row,) = json.loads((folder / name / "eval.json").read_text())["rows"]
        del row["tokens_per_second"], row["peak_memory"]
        rows.append(row)
    shared, alone = rows
    assert shared["windows"] == alone["windows"] > 20
    assert shared["next_token"] == pytest.approx(alone["next_token"])
    assert shared["per_unit"]["nats"] == pytest.approx(alone["per_unit"]["nats"], rel=1e-5)
    by_position = ([x for x in row["loss_by_position"] if x is not None] for row in rows)
    assert next(by_position) == pytest.approx(next(by_position), rel=1e-5)
    for way in ("zeroed", "other"):
        found, expected = (row["state"][way]["above_own"] for row in rows)
        assert found == pytest.approx(expected, abs=1e-5)


def test_two_processes_make_the_run_of_one(tmp_path):
    """Two copies of a model. The test below goes through every way to share a run."""
    write_documents(tmp_path / "text.txt", count=9, words=30)
    shared, alone = (
        command(tmp_path, output=tmp_path / name, **UNEVEN) for name in ("copies", "alone")
    )
    torchrun(tmp_path, [shared])
    assert cli.main(alone) == 0
    assert_same_run(tmp_path / "alone", tmp_path / "copies")


@pytest.mark.nightly
def test_two_processes_make_the_run_of_one_and_continue_it(tmp_path):
    """One test, since starting processes is what takes time."""
    make_runs(tmp_path)
    for name, as_one in AS_ONE.items():
        assert losses_of(tmp_path / name), name
        assert_same_run(tmp_path / f"{as_one}-alone", tmp_path / name)
    in_bfloat16 = losses_of(tmp_path / "bf16-alone")
    assert losses_of(tmp_path / "bf16") == pytest.approx(in_bfloat16, abs=2e-2)
    # Continued with as many processes, dropout falls where it would have fallen.
    assert timeless(log_of(tmp_path / "drop")) == timeless(log_of(tmp_path / "drop-half"))
    check_continued(tmp_path)
    check_read(tmp_path)


def check_continued(folder: Path) -> None:
    """2 copies, then 1, then 2 shards that accelerate launches."""
    half = folder / "half"
    arguments = [*command(folder, output=half, **UNEVEN), "--resume"]
    assert cli.main([*arguments, "--max-steps", "5"]) == 0
    said = accelerate_launch(arguments)
    assert said.count("Continuing after step 5") == 1
    assert "shared by 2 processes, each with a shard of the weights" in said
    assert losses_of(half) == pytest.approx(losses_of(folder / "copies"), abs=1e-4)
    undisturbed = weights_of(folder / "copies", 8)
    for name, weight in weights_of(half, 8).items():
        assert weight.allclose(undisturbed[name], atol=1e-4), name
