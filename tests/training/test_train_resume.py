"""A run that is stopped, killed or damaged goes on as if nothing had happened."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from holdover.cli import entry as cli
from holdover.language.task import LanguageModelling
from holdover.runs.models import open_model
from holdover.state import State
from holdover.training import checkpoint
from killable_cli import KillableCLI
from runs import (
    SHAPE,
    best_of,
    checkpoints_of,
    command,
    log_of,
    losses_of,
    refusal,
    steps_of,
    timeless,
    train,
    validations_of,
    write_documents,
)

DROPOUT = ",".join(
    f"{key}={0.1 if key.endswith('pdrop') else value}" for key, value in SHAPE.items()
)
# Dropout, overlap, several documents and epochs, validations and rotation on the way.
EVERYTHING = {
    "shape": DROPOUT,
    "overlap": 3,
    "epochs": 9,
    "max_steps": 60,
    "validate_every": 200,
    "save_every": 3,
    "keep": 2,
    "patience": "none",
}
BITWISE = ("model.safetensors", "optimizer.safetensors", "random.safetensors")


@pytest.fixture(scope="module")
def cli_process():
    process = KillableCLI()
    yield process
    process.close()


@pytest.fixture(scope="module")
def undisturbed(cli_process, tmp_path_factory):
    """The folder of a run that nothing happened to, with its text beside it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = cli_process.run(command(folder, **EVERYTHING))
    assert ended["code"] == 0, ended["output"]
    run = folder / "run"
    # What the tests below rely on.
    assert len(steps_of(run)) == 60 and len(validations_of(run)) > 8
    assert sum(line["best"] for line in validations_of(run)) > 5
    assert steps_of(run)[-1]["tokens"] > 3 * 400
    return folder


def copy_text(undisturbed, folder):
    shutil.copy(undisturbed / "text.txt", folder)


def state_of(run: Path, step: int) -> dict:
    """Everything of a checkpoint that decides what comes next."""
    folder = run / f"checkpoint-{step}"
    found = {name: (folder / name).read_bytes() for name in BITWISE}
    progress = json.loads((folder / "progress.json").read_text())
    found["progress"] = {**progress, "seconds": None}
    if (folder / "carried.state").exists():
        # Not its bytes: safetensors writes the entries of its header in any order.
        state = State.load(folder / "carried.state")
        tensors = {**state.tensors, "present": state.present, "tail": state.tail}
        found["carried"] = dict(state.owner) | {
            name: tensor if tensor is None else (tensor.dtype, tensor.tolist())
            for name, tensor in tensors.items()
        }
    return found


def assert_same_end(run: Path, expected: Path) -> None:
    """Bit for bit the same weights, optimiser, random numbers, state and losses."""
    assert timeless(log_of(run)) == timeless(log_of(expected))
    assert checkpoints_of(run) == checkpoints_of(expected)
    assert best_of(run) == best_of(expected)
    for step in checkpoints_of(expected):
        assert state_of(run, step) == state_of(expected, step), step
    assert sorted(path.name for path in run.iterdir() if ".partial" in path.name) == []


@pytest.mark.nightly
def test_a_run_killed_again_and_again_ends_as_if_undisturbed(cli_process, undisturbed, tmp_path):
    copy_text(undisturbed, tmp_path)
    run = tmp_path / "run"
    draw = random.Random()
    arguments = command(tmp_path, **EVERYTHING)
    again = [*arguments, "--resume"]

    # The command line itself, killed some time after its log began.
    killed_by_hand(arguments, run, lines=5, seconds=draw.uniform(0, 0.1))
    deaths = 1
    places = [
        ("within a file of a checkpoint", 3),
        ("between the files of a checkpoint", 4),
        ("before a checkpoint gets its name", 2),
        ("before the best is linked", 2),
        ("while the best is linked", 3),
        ("while an old checkpoint is removed", 2),
        ("within a line of the log", 4),
        ("while it is continued", 1),
    ]
    draw.shuffle(places)
    for place in places:
        assert cli_process.run(again, place=place)["code"] == -signal.SIGKILL, place
        deaths += 1
    for _ in range(3):
        lines = len((run / "log.jsonl").read_bytes().splitlines())
        sent = (signal.SIGKILL, run, lines + draw.randint(1, 4), draw.uniform(0, 0.03))
        ended = cli_process.run(again, sent=sent)
        assert ended["code"] in (-signal.SIGKILL, 0), ended["output"]
        deaths += ended["code"] == -signal.SIGKILL
    assert deaths >= 9
    done = subprocess.run(by_hand(again), capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    assert_same_end(run, undisturbed / "run")


def by_hand(arguments: list[str]) -> list[str]:
    installed = Path(sys.executable).with_name("holdover")
    start = [str(installed)] if installed.exists() else [sys.executable, "-m", "holdover"]
    return [*start, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def killed_by_hand(arguments: list[str], run: Path, lines: int, seconds: float) -> None:
    log = run / "log.jsonl"
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(
            by_hand(arguments), stdout=nowhere, stderr=nowhere, env=environment()
        )
        while not (log.exists() and log.read_bytes().count(b"\n") >= lines):
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(seconds)
        process.kill()
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "place",
    [
        ("before its first validation", 1),
        ("between the files of a checkpoint", 1),
        ("before a checkpoint gets its name", 1),
        ("before the best is linked", 1),
        ("while the best is linked", 1),
    ],
    ids=lambda place: place[0],
)
def test_killed_at_its_first_checkpoint(place, cli_process, undisturbed, tmp_path):
    copy_text(undisturbed, tmp_path)
    arguments = command(tmp_path, **EVERYTHING)
    assert cli_process.run(arguments, place=place)["code"] == -signal.SIGKILL
    ended = cli_process.run([*arguments, "--resume"])
    assert ended["code"] == 0, ended["output"]
    assert_same_end(tmp_path / "run", undisturbed / "run")


@pytest.mark.parametrize(
    "place",
    [
        ("within a file of a checkpoint", 5),
        ("before a checkpoint gets its name", 4),
        ("while an old checkpoint is removed", 1),
    ],
    ids=lambda place: place[0],
)
def test_what_has_the_name_of_a_checkpoint_is_whole(place, cli_process, undisturbed, tmp_path):
    copy_text(undisturbed, tmp_path)
    ended = cli_process.run(command(tmp_path, **EVERYTHING), place=place)
    assert ended["code"] == -signal.SIGKILL
    run = tmp_path / "run"
    found = checkpoints_of(run)
    assert len(found) >= 2 and best_of(run) in found
    for step in found:
        checkpoint.Checkpoints(run, 1).load(run / f"checkpoint-{step}")
        open_model(str(run / f"checkpoint-{step}"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_polite_signals_write_a_checkpoint(number, cli_process, undisturbed, tmp_path):
    copy_text(undisturbed, tmp_path)
    run = tmp_path / "run"
    arguments = command(tmp_path, **EVERYTHING)
    ended = cli_process.run(arguments, sent=(number, run, 20, 0.0))
    assert ended["code"] == 130, ended["output"]
    last = steps_of(run)[-1]["step"]
    assert 10 < last < 60
    assert checkpoints_of(run)[-1] == last
    assert f"{number.name}: stopped after step {last}" in ended["output"]
    assert ended["output"].endswith("holdover: interrupted.\n")
    ended = cli_process.run([*arguments, "--resume"])
    assert ended["code"] == 0, ended["output"]
    assert f"Continuing after step {last}" in ended["output"]
    assert_same_end(run, undisturbed / "run")


# In this process: a run that breaks off by an exception.


class Crash(Exception):
    """What no program expects."""


def crash_at(monkeypatch, step: int) -> None:
    """The next run breaks off in a step; those after it do not."""
    calls, original = 0, LanguageModelling.loss

    def loss(self, *arguments):
        nonlocal calls
        calls += 1
        if calls == step:
            monkeypatch.setattr(LanguageModelling, "loss", original)
            raise Crash
        return original(self, *arguments)

    monkeypatch.setattr(LanguageModelling, "loss", loss)


def crash(monkeypatch, folder, step, *words, **settings) -> Path:
    crash_at(monkeypatch, step)
    with pytest.raises(Crash):
        cli.main(command(folder, *words, **settings))
    return folder / "run"


@pytest.mark.parametrize(("signals", "last"), [(1, 3), (2, 0)])
def test_a_second_signal_stops_at_once(signals, last, tmp_path, monkeypatch, capsys):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are answered in the main thread only")
    before = signal.getsignal(signal.SIGTERM)
    calls, original = 0, LanguageModelling.loss

    def loss(self, *arguments):
        nonlocal calls
        calls += 1
        if calls == 3:
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGTERM)
        return original(self, *arguments)

    monkeypatch.setattr(LanguageModelling, "loss", loss)
    assert cli.main(command(tmp_path)) == 130
    assert signal.getsignal(signal.SIGTERM) is before
    assert checkpoints_of(tmp_path / "run")[-1] == last
    assert capsys.readouterr().err == "holdover: interrupted.\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ((), {"recurrence": "none"}),
        (("recurrence.slots=2",), {"recurrence": "tokens"}),
        ((), {"bf16": True}),
        ((), {"freeze_base": True}),
        ((), {"schedule": "cosine", "warm_up": 3}),
        ((), {"weight_decay": 0.1, "clip": "none", "reset_every": 2}),
        (("recurrence.horizon=1", "recurrence.recompute=window"), {}),
        (("recurrence.detach_state=true",), {}),
    ],
    ids=str,
)
def test_every_way_of_training_continues_exactly(words, settings, tmp_path, monkeypatch):
    common = {"shape": DROPOUT, "overlap": 3, "save_every": 5, "max_steps": 12, **settings}
    expected = train(tmp_path, *words, output=tmp_path / "expected", **common)
    run = crash(monkeypatch, tmp_path, 9, *words, **common)
    assert checkpoints_of(run)[-1] == 5 and losses_of(run) == losses_of(expected)[:8]
    train(tmp_path, *words, resume=True, **common)
    assert_same_end(run, expected)


def test_accumulation_continues_exactly(tmp_path, monkeypatch):
    common = {"accumulate": 2, "save_every": 2, "max_steps": 6, "shape": DROPOUT}
    expected = train(tmp_path, output=tmp_path / "expected", **common)
    run = crash(monkeypatch, tmp_path, 10, **common)
    assert len(losses_of(run)) == 4
    train(tmp_path, resume=True, **common)
    assert_same_end(run, expected)


def test_the_best_is_kept_though_it_was_never_linked(tmp_path, monkeypatch):
    """Killed behind the rename: without its link, the best checkpoint would be rotated away."""
    losses = iter([5.0, 4.0, 4.5, 4.5, 4.5, 4.5, 4.5])
    monkeypatch.setattr(LanguageModelling, "validate", lambda *_: {"loss": next(losses)})
    original = checkpoint.Checkpoints.mark_best

    def break_off(self, step):
        if step:
            raise Crash
        original(self, step)

    monkeypatch.setattr(checkpoint.Checkpoints, "mark_best", break_off)
    common = {"validate_every": 80, "keep": 1, "patience": "none"}
    with pytest.raises(Crash):
        cli.main(command(tmp_path, **common))
    monkeypatch.setattr(checkpoint.Checkpoints, "mark_best", original)
    best = checkpoints_of(tmp_path / "run")[-1]
    run = train(tmp_path, resume=True, **common)
    assert best_of(run) == best
    assert checkpoints_of(run) == [best, 10]


# Which runs are continued


def test_a_finished_run_stays_as_it_is(tmp_path, capsys):
    for number, limit in enumerate(
        [
            {"max_steps": 5},
            {"max_steps": None, "epochs": 1},
            # The last step is one at which it saves anyway.
            {"max_steps": None, "epochs": 1, "save_every": 1},
            {"max_steps": None, "max_tokens": 100},
            {"max_steps": 50, "max_time": 1e-9},
        ]
    ):
        output = tmp_path / str(number)
        run = train(tmp_path, output=output, **limit)
        before = (run / "log.jsonl").read_bytes(), checkpoints_of(run), best_of(run)
        weights = state_of(run, before[1][-1])
        train(tmp_path, output=output, resume=True, **limit)
        assert ((run / "log.jsonl").read_bytes(), checkpoints_of(run), best_of(run)) == before
        assert state_of(run, before[1][-1]) == weights
        assert "Done: " in capsys.readouterr().out


def test_a_run_without_patience_left_stays_as_it_is(tmp_path, monkeypatch):
    losses = iter([1.0, 2.0, 3.0, 4.0, 0.5, 0.4, 0.3, 0.2])
    monkeypatch.setattr(LanguageModelling, "validate", lambda *_: {"loss": next(losses)})
    common = {"validate_every": 1, "max_steps": 5}
    run = train(tmp_path, patience=2, **common)
    assert len(losses_of(run)) == 2
    train(tmp_path, patience=2, resume=True, **common)
    assert len(losses_of(run)) == 2
    # More patience than before is a reason to go on.
    train(tmp_path, patience=3, resume=True, **common)
    assert len(losses_of(run)) == 3


def test_a_longer_run_than_before(tmp_path):
    expected = train(tmp_path, output=tmp_path / "expected", max_steps=9)
    run = train(tmp_path, max_steps=4)
    train(tmp_path, resume=True, max_steps=9, keep=3, log_every=1)
    assert losses_of(run) == losses_of(expected)
    assert [line["step"] for line in steps_of(run)] == list(range(1, 10))
    for name in ("model.safetensors", "optimizer.safetensors"):
        found = [(folder / "checkpoint-9" / name).read_bytes() for folder in (run, expected)]
        assert found[0] == found[1]


def test_other_settings_are_refused_and_named(tmp_path, capsys):
    run = train(tmp_path, max_steps=2)
    before = files_of(run)
    said = refusal(
        capsys,
        command(tmp_path, "recurrence.slots=2", lr=1e-2, window=9, rows=3, resume=True),
    )
    assert "--lr was 0.001 and is now 0.01" in said
    assert "--window was 8 and is now 9" in said
    assert "recurrence.slots was 1 and is now 2" in said
    assert "rows" not in said and "max_steps" not in said and "overlap" not in said
    assert files_of(run) == before


def test_settings_that_are_newer_than_a_run(tmp_path):
    """Were as they are by default."""
    run = train(tmp_path, max_steps=2)
    about = json.loads((run / "holdover_run.json").read_text())
    del about["options"]["bf16"], about["options"]["recurrence"]["horizon"]
    (run / "holdover_run.json").write_text(json.dumps(about))
    train(tmp_path, resume=True, max_steps=4)
    assert len(steps_of(run)) == 4


@pytest.mark.parametrize("which", ["training", "validation"])
def test_another_text_under_the_same_name_is_refused(which, tmp_path, capsys):
    path = write_documents(tmp_path / "other.txt", seed=1)
    common = {"validation": path} if which == "validation" else {"data": path}
    run = train(tmp_path, max_steps=2, **common)
    before = files_of(run)
    write_documents(path, seed=2)
    said = refusal(capsys, command(tmp_path, max_steps=4, resume=True, **common))
    assert f"text of the {which} data has changed" in said
    assert files_of(run) == before


def test_a_run_knows_its_settings(tmp_path):
    """--resume needs no more than the folder, and what is to change."""
    assert cli.main(command(tmp_path, "recurrence.slots=2", max_steps=4)) == 0
    assert cli.main(["train", "--resume", "--output", str(tmp_path / "run"), "max_steps=6"]) == 0
    other = tmp_path / "other"
    assert cli.main(command(tmp_path, "recurrence.slots=2", max_steps=6, output=other)) == 0
    assert losses_of(tmp_path / "run") == losses_of(other)


def test_another_end_is_another_schedule(tmp_path, capsys):
    assert cli.main(command(tmp_path, max_steps=3, schedule="cosine")) == 0
    folder = ["--output", str(tmp_path / "run")]
    assert cli.main(["train", "--resume", *folder, "max_steps=6"]) == 2
    assert "max_steps was 3 and is now 6" in capsys.readouterr().err
    assert cli.main(["train", "--resume", *folder, "keep=3"]) == 0


def test_two_processes_cannot_train_in_one_folder(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    with checkpoint.lock_folder(tmp_path / "run"):
        assert cli.main(command(tmp_path)) == 2
    assert "Another process is training" in capsys.readouterr().err
    assert cli.main(command(tmp_path, max_steps=1)) == 0


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"options": {}}'])
def test_a_damaged_description_of_a_run(content, tmp_path, capsys):
    assert cli.main(command(tmp_path, max_steps=1)) == 0
    (tmp_path / "run" / "holdover_run.json").write_text(content)
    assert cli.main(["train", "--resume", "--output", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "holdover_run.json is damaged" in said and said.count("\n") == 1


def test_nothing_to_continue(tmp_path, capsys):
    assert "no run in" in refusal(capsys, command(tmp_path, resume=True))


def test_a_folder_with_a_run_in_it_is_not_overwritten(tmp_path, capsys):
    run = train(tmp_path, max_steps=2)
    before = files_of(run)
    said = refusal(capsys, command(tmp_path, max_steps=2, seed=1))
    assert "holds a run already" in said and "--resume" in said
    assert files_of(run) == before


def test_a_run_that_broke_off_before_its_log_can_begin_anew(tmp_path, monkeypatch):
    """Other settings than those of the attempt that left nothing but its description."""
    original = LanguageModelling.validate

    def fail(*_):
        raise Crash

    monkeypatch.setattr(LanguageModelling, "validate", fail)
    with pytest.raises(Crash):
        cli.main(command(tmp_path, rows=2))
    monkeypatch.setattr(LanguageModelling, "validate", original)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "holdover_run.json"}
    train(tmp_path, rows=3, max_steps=2)
    train(tmp_path, rows=3, max_steps=3, resume=True)
    assert len(losses_of(tmp_path / "run")) == 3


# Damage


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "optimizer.safetensors",
        "random.safetensors",
        "carried.state",
        "progress.json",
        "config.json",
    ],
)
@pytest.mark.parametrize("left", [0, 0.5])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_goes_on(
    name, left, tmp_path, capsys
):
    common = {"save_every": 2, "keep": 3, "shape": DROPOUT}
    run = train(tmp_path, max_steps=6, **common)
    whole = state_of(run, 6)
    path = run / "checkpoint-6" / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * left)])
    before = files_of(run)
    said = refusal(capsys, command(tmp_path, max_steps=6, resume=True, **common))
    assert "checkpoint-6" in said and "damaged" in said and "remove that folder" in said
    assert files_of(run) == before
    shutil.rmtree(run / "checkpoint-6")
    train(tmp_path, resume=True, max_steps=6, **common)
    assert state_of(run, 6) == whole
    assert [line["step"] for line in steps_of(run)] == list(range(1, 7))
    assert best_of(run) == 6
    open_model(str(run))


@pytest.mark.parametrize("missing", ["optimizer.safetensors", "progress.json", "model.safetensors"])
def test_a_checkpoint_without_one_of_its_files(missing, tmp_path, capsys):
    run = train(tmp_path, max_steps=2)
    (run / "checkpoint-2" / missing).unlink()
    said = refusal(capsys, command(tmp_path, max_steps=3, resume=True))
    assert "checkpoint-2" in said and "remove that folder" in said


@pytest.mark.parametrize("cut", [None, 10, "gone"])
def test_the_log_of_a_continued_run_has_every_step_once(cut, tmp_path, monkeypatch):
    common = {"save_every": 3, "max_steps": 8}
    run = crash(monkeypatch, tmp_path, 6, **common)
    log = run / "log.jsonl"
    assert [line["step"] for line in steps_of(run)] == [1, 2, 3, 4, 5]
    if cut == "gone":
        log.unlink()
    elif cut is not None:
        log.write_bytes(log.read_bytes()[:-cut])
    train(tmp_path, resume=True, **common)
    expected = range(4, 9) if cut == "gone" else range(1, 9)
    assert [line["step"] for line in steps_of(run)] == list(expected)
    if cut != "gone":
        assert [line["step"] for line in validations_of(run)] == [0, 8]


@pytest.mark.nightly
def test_all_that_decides_the_next_step_is_in_a_checkpoint(tmp_path, monkeypatch):
    """Continued elsewhere: in another folder, with other random numbers drawn before."""
    common = {"save_every": 3, "max_steps": 8, "shape": DROPOUT, "overlap": 2}
    expected = train(tmp_path, output=tmp_path / "expected", **common)
    run = crash(monkeypatch, tmp_path, 6, **common)
    moved = run.rename(tmp_path / "moved")
    torch.manual_seed(1234)
    train(tmp_path, output=moved, resume=True, **common)
    assert_same_end(moved, expected)
