"""What cannot be trained is refused, and what fails on the way leaves the last good checkpoint."""

import errno
import json
import os
import shutil
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from holdover.language.options import TrainOptions
from holdover.language.task import LanguageModelling
from holdover.recurrent.model import RecurrentModel
from holdover.runs.models import open_model
from holdover.training import checkpoint, log
from holdover.training.loop import Loop
from holdover.training.setup import make_accelerator
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
    weights_of,
)


def refused(capsys, folder, *words, **settings):
    """The sentence of a request that is refused before anything is trained."""
    said = refusal(capsys, command(folder, *words, **settings))
    run = folder / "run"
    assert not run.is_dir() or not [path for path in run.iterdir() if "checkpoint" in path.name]
    return said


def shape(**changes):
    return ",".join(f"{key}={value}" for key, value in {**SHAPE, **changes}.items())


def save_stock(folder, **changes):
    torch.manual_seed(0)
    values = {"vocab_size": 256, "bos_token_id": None, "eos_token_id": None, **SHAPE, **changes}
    GPT2LMHeadModel(GPT2Config(**values)).save_pretrained(folder)
    return folder


# What is asked for


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": None}, "Say which model"),
        ({"data": None}, "Say which data"),
        ({"from_scratch": None}, "--shape: only random models can change it"),
        (
            {"shape": shape(n_layr=2)},
            "'n_layr' is not a setting of gpt2 models; did you mean n_layer",
        ),
        ({"shape": shape(qqq=2)}, "'qqq' is not a setting of gpt2 models."),
        ({"shape": shape(n_layer="two")}, "n_layer=two"),
        ({"shape": shape(n_head=3)}, "n_head=3"),
        ({"window": 33}, "--window 33"),
        ({"window": 32, "recurrence": "tokens"}, "2 memory positions"),
        ({"shape": shape(vocab_size=100)}, "bytes has 256 ids and the model only 100"),
        ({"rows": 10_000}, "too few for 10000 rows"),
        ({"data": "nowhere.txt"}, "'nowhere.txt'"),
        ({"validation": "nowhere.txt"}, "'nowhere.txt'"),
        ({"tokenizer": "no/where"}, "no/where"),
        ({"held_out": 1e-6}, "leaves nothing to predict"),
        ({"new_document": "["}, "not a regular expression"),
        ({"freeze_base": True, "recurrence": "none"}, "Nothing would be trained"),
        ({"validation_tokens": 1}, "nothing to score"),
    ],
    ids=str,
)
def test_refused(settings, said, tmp_path, capsys):
    assert said in refused(capsys, tmp_path, **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(tmp_path, capsys):
    assert "--device cpu" in refused(capsys, tmp_path, device="cuda")


def test_room_is_looked_for_with_the_optimisers_state(tmp_path, capsys, monkeypatch):
    """The first checkpoint has none: it is a third of those that follow."""
    seen = []
    usage = shutil.disk_usage

    def little(path):
        size = sum(file.stat().st_size for file in (tmp_path / "run" / "checkpoint-0").iterdir())
        seen.append(size)
        # Enough for three checkpoints like the first, not for three like the second.
        return usage(path)._replace(free=5 * size + checkpoint.MARGIN)

    monkeypatch.setattr(checkpoint.shutil, "disk_usage", little)
    said = refusal(capsys, command(tmp_path, keep=2))
    assert "make room" in said and seen
    assert not losses_of(tmp_path / "run")


def test_what_several_processes_cannot_do_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert "--rows 3 is too few for 4 processes" in refused(capsys, tmp_path)
    said = refused(capsys, tmp_path, rows=4, compile=True, shard=True)
    assert "Sharded weights cannot be compiled" in said
    said = refusal(capsys, ["compare", "a", "b"])
    assert "holdover compare works in one process, and 4 were started" in said
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert "give --mixed_precision no" in refused(capsys, tmp_path, rows=4)


def test_processes_are_started_by_the_command_line(tmp_path):
    options = TrainOptions.of(model="gpt2", data="text.txt", processes=2, output=tmp_path)
    with pytest.raises(ValueError, match="--processes 2: only the command line"):
        make_accelerator(options)


def test_settings_of_a_state_that_does_not_exist_are_refused_before_texts_are_read(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("holdover.language.training.read_texts", lambda *_: pytest.fail("read"))
    assert "is not a kind of state" in refused(capsys, tmp_path, recurrence="nonne")


def test_models_that_cannot_be_opened(tmp_path, capsys):
    plain = {"from_scratch": None, "shape": None}
    said = refused(capsys, tmp_path, model="nobody/nothing", **plain)
    assert "The model nobody/nothing could not be opened" in said
    (tmp_path / "empty").mkdir()
    said = refused(capsys, tmp_path, model=tmp_path / "empty", **plain)
    assert "empty is empty: give the folder of a model" in said
    assert "could not be opened" in refused(
        capsys, tmp_path, model="nobody/nothing", from_scratch=True, shape=None
    )


@pytest.mark.parametrize("left", [0, 4, 0.5, "none"])
def test_truncated_weights(left, tmp_path, capsys):
    folder = save_stock(tmp_path / "stock")
    path = folder / "model.safetensors"
    content = path.read_bytes()
    if left == "none":
        path.unlink()
    else:
        path.write_bytes(content[: int(left if left > 1 else left * len(content))])
    said = refused(capsys, tmp_path, model=folder, from_scratch=None, shape=None)
    assert "stock" in said
    assert ("could not be opened" if left == "none" else "truncated or damaged") in said


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model_type": "dream"}'])
def test_damaged_configurations(content, tmp_path, capsys):
    folder = save_stock(tmp_path / "stock")
    (folder / "config.json").write_text(content)
    assert "stock" in refused(capsys, tmp_path, model=folder, from_scratch=None, shape=None)


def test_a_model_that_is_not_run_here(tmp_path, capsys):
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": 256}))
    refused(capsys, tmp_path, model=folder, shape=None)


def test_a_model_without_a_tokenizer(tmp_path, capsys):
    folder = save_stock(tmp_path / "stock")
    said = refused(capsys, tmp_path, model=folder, from_scratch=None, shape=None, tokenizer=None)
    assert "no tokenizer" in said


# Where it is written


@pytest.mark.parametrize("output", ["file", "file/run"])
def test_a_file_in_the_way_of_the_output(output, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    said = refusal(capsys, command(tmp_path, output=tmp_path / output))
    assert "--output" in said and "give another folder" in said
    assert (tmp_path / "file").read_text() == "in the way"


def whole_and_finite(run):
    """All checkpoints of a run can be loaded and hold numbers; returns their steps."""
    found = checkpoints_of(run)
    for step in found:
        model = open_model(str(run / f"checkpoint-{step}"))
        assert all(bool(weight.isfinite().all()) for weight in model.parameters())
        checkpoint.Checkpoints(run, 1).load(run / f"checkpoint-{step}")
    assert not list(run.glob(".partial*"))
    return found


Usage = namedtuple("Usage", ["total", "used", "free"])


def test_a_disk_without_room_for_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**12, 10**12, 1000))
    said = refusal(capsys, command(tmp_path))
    assert "has 1,000 bytes left" in said and "--keep" in said
    assert whole_and_finite(tmp_path / "run") == [0]


def test_a_disk_that_fills_up(tmp_path, capsys, monkeypatch):
    """It is noticed before a checkpoint is begun; with room again the run goes on."""
    expected = train(tmp_path, output=tmp_path / "expected", save_every=2)
    left = iter([10**12, 10**12, 10**12])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, next(left, 1000)))
    said = refusal(capsys, command(tmp_path, save_every=2))
    run = tmp_path / "run"
    assert "checkpoint-6 could not be written" in said and "checkpoint-4" in said
    assert whole_and_finite(run) == [0, 2, 4]
    monkeypatch.undo()
    train(tmp_path, save_every=2, resume=True)
    assert losses_of(run) == losses_of(expected)


@pytest.mark.parametrize("what", ["model", "optimizer", "sync", "name"])
def test_a_disk_that_is_full_within_a_checkpoint(what, tmp_path, capsys, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def after(original, calls):
        left = iter(range(calls))
        return lambda *a, **k: original(*a, **k) if next(left, None) is not None else full()

    if what == "optimizer":
        monkeypatch.setattr(checkpoint, "save_file", after(checkpoint.save_file, 4))
    elif what == "model":
        monkeypatch.setattr(
            RecurrentModel, "save_pretrained", after(RecurrentModel.save_pretrained, 2)
        )
    elif what == "sync":
        monkeypatch.setattr(checkpoint, "_sync", after(checkpoint._sync, 24))
    else:
        monkeypatch.setattr(checkpoint.Path, "rename", after(checkpoint.Path.rename, 2))
    said = refusal(capsys, command(tmp_path, save_every=2, keep=9))
    assert "No space left on device" in said and "--resume" in said
    assert "could not be written" in said
    run = tmp_path / "run"
    found = whole_and_finite(run)
    assert found and found[-1] < 10
    assert f"the last complete one is checkpoint-{found[-1]}" in said
    monkeypatch.undo()
    train(tmp_path, save_every=2, keep=9, resume=True)
    assert whole_and_finite(run)[-1] == 10


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_disk_that_is_full_for_the_log(tmp_path, capsys, monkeypatch):
    run = train(tmp_path, max_steps=2)
    full = lambda path, mode: open("/dev/full", mode)  # noqa: E731, SIM115
    monkeypatch.setattr(log, "open", full, raising=False)
    said = refusal(capsys, command(tmp_path, max_steps=4, resume=True))
    assert "log.jsonl could not be written (No space left on device)" in said
    monkeypatch.undo()
    train(tmp_path, max_steps=4, resume=True)
    assert [line["step"] for line in steps_of(run)] == [1, 2, 3, 4]


# Numbers that are none


def poison(monkeypatch, step, spoil):
    """Change the loss of one step; the runs after it are healthy."""
    calls, original = 0, LanguageModelling.loss

    def loss(self, model, *arguments):
        nonlocal calls
        calls += 1
        found, state = original(self, model, *arguments)
        return (spoil(found, model) if calls == step else found), state

    monkeypatch.setattr(LanguageModelling, "loss", loss)


def bad_gradient(loss, model):
    """A finite loss whose gradient is none: the root of zero."""
    return loss + (next(model.parameters()) * 0).sum().sqrt()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("clip", [1, "none"])
def test_a_loss_that_is_no_number_stops_the_run(value, clip, tmp_path, capsys, monkeypatch):
    expected = train(tmp_path, output=tmp_path / "expected", clip=clip)
    poison(monkeypatch, 4, lambda loss, model: loss * value)
    common = {"save_every": 1, "keep": 9, "clip": clip}
    said = refusal(capsys, command(tmp_path, **common))
    assert f"loss of step 4 is {value}" in said and "checkpoint-3 is the last good" in said
    run = tmp_path / "run"
    assert whole_and_finite(run) == [0, 1, 2, 3]
    assert [line["step"] for line in steps_of(run)] == [1, 2, 3]
    assert best_of(run) == 0
    monkeypatch.undo()
    train(tmp_path, resume=True, **common)
    assert losses_of(run) == losses_of(expected)


@pytest.mark.parametrize(
    ("settings", "said", "kept"),
    [
        ({"clip": 1, "save_every": 1}, "gradient of step 4 is not finite", [0, 1, 2, 3]),
        ({"clip": "none", "save_every": 1}, "weights after step 4 are not finite", [0, 1, 2, 3]),
        ({"clip": "none", "save_every": 3}, "loss of step 5 is nan", [0, 3]),
        (
            {"clip": "none", "save_every": 50, "validate_every": 150},
            "weights after step 4 are not finite",
            [0],
        ),
        ({"clip": "none", "save_every": 50, "max_steps": 4}, "weights after step 4", [0]),
    ],
    ids=str,
)
def test_a_gradient_that_is_no_number(settings, said, kept, tmp_path, capsys, monkeypatch):
    poison(monkeypatch, 4, bad_gradient)
    sentence = refusal(capsys, command(tmp_path, keep=9, **settings))
    assert said in sentence and f"checkpoint-{kept[-1]} is the last good" in sentence
    assert whole_and_finite(tmp_path / "run") == kept
    log_of(tmp_path / "run")


class Late:
    """An accelerator that says it is none of the CPU: losses are looked at one step late."""

    def __init__(self, own):
        self._own = own
        self.device = SimpleNamespace(type="elsewhere")

    def __getattr__(self, name):
        return getattr(self._own, name)


@pytest.mark.parametrize(
    ("save_every", "said", "kept"),
    [(1, "loss of step 4 is nan", [0, 1, 2, 3]), (50, "loss of step 4 is nan", [0])],
)
def test_losses_that_arrive_late(save_every, said, kept, tmp_path, capsys, monkeypatch):
    """As on a GPU: nothing is missing from the log, and a bad step is noticed before it is saved."""
    original = Loop.__init__

    def begin(self, *arguments):
        original(self, *arguments)
        self.accelerator = Late(self.accelerator)

    expected = train(tmp_path, output=tmp_path / "expected", validate_every=100)
    monkeypatch.setattr(Loop, "__init__", begin)
    common = {"validate_every": 100, "save_every": save_every, "keep": 20}
    late = train(tmp_path, output=tmp_path / "late", **common)
    assert timeless(log_of(late)) == timeless(log_of(expected))
    poison(monkeypatch, 4, lambda loss, model: loss * float("nan"))
    common["validate_every"] = 10**6
    assert said in refusal(capsys, command(tmp_path, **common))
    assert whole_and_finite(tmp_path / "run") == kept
    assert [line["step"] for line in steps_of(tmp_path / "run")] == [1, 2, 3]


def test_a_learning_rate_that_is_far_too_large(tmp_path, capsys):
    common = {"lr": 1e30, "added_learning_rate": 1e30, "clip": "none", "save_every": 1}
    said = refusal(capsys, command(tmp_path, **common))
    assert "of step 2 is" in said and "smaller learning rate" in said
    assert whole_and_finite(tmp_path / "run")[0] == 0


def test_a_base_that_is_no_number_is_not_trained(tmp_path, capsys):
    folder = save_stock(tmp_path / "stock")
    model = GPT2LMHeadModel.from_pretrained(folder)
    with torch.no_grad():
        model.transformer.ln_f.weight[0] = float("nan")
    model.save_pretrained(folder)
    said = refused(capsys, tmp_path, model=folder, from_scratch=None, shape=None)
    assert "weights after step 0 are not finite" in said and "nothing was saved" in said


def test_the_weights_of_a_stopped_run_are_those_of_its_last_good_step(
    tmp_path, capsys, monkeypatch
):
    expected = train(tmp_path, output=tmp_path / "expected", max_steps=3)
    poison(monkeypatch, 4, bad_gradient)
    refusal(capsys, command(tmp_path, save_every=1))
    found, wanted = weights_of(tmp_path / "run", 3), weights_of(expected, 3)
    for name, weight in wanted.items():
        assert torch.equal(found[name], weight)
