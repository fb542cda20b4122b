"""An experiment's training: the same steps faster where they can be had, else as they are written."""

import io
import shutil
from dataclasses import dataclass, field

import pytest
import torch
from rich.console import Console
from torch._dynamo.exc import Unsupported

from holdover.experiments.run_context import FINISHED, RunContext, last_checkpoint
from holdover.language import training
from holdover.recurrent.model import RecurrentModel
from holdover.runs.models import RUN, read_run
from holdover.training.compile_checks import CompileMismatch
from runs import OtherGradient, log_of

FASTER = {"compile": True, "replay": True}


@dataclass
class Refusals:
    """What of a made-up GPU's ways fails, and how often each was asked for."""

    compiling: Exception | None = None
    recording: bool = False
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def gpu(monkeypatch):
    """A CPU on which steps are compiled and recorded as if they could be."""
    refusals = Refusals()

    def compile_step(self):
        refusals.asked.append("compile")

        def step(*arguments):
            if refusals.compiling is not None:
                raise refusals.compiling
            return self._step(*arguments)

        self._compiled.step = step

    def record(module, given, allow_unused_input, pool):
        refusals.asked.append("replay")

        def replay(*tensors):
            loss, *state = module(*tensors)
            return OtherGradient.apply(loss) if refusals.recording else loss, *state

        return replay

    monkeypatch.setattr(RecurrentModel, "compile_step", compile_step)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", record)
    monkeypatch.setattr(training, "check_replay", lambda *_: None)
    monkeypatch.setattr(RunContext, "on_gpu", True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return refusals


@pytest.fixture
def work(tmp_path):
    console = Console(file=io.StringIO(), width=200)
    common = {"device": "cpu", "cache_dir": tmp_path / "cache"}
    return RunContext(tmp_path / "run", {}, 0, {}, {}, console, common)


def trained(work, **given):
    shape = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 32}
    folder = work.train(
        model="gpt2",
        from_scratch=True,
        tokenizer="bytes",
        shape=shape | {f"{part}_pdrop": 0.0 for part in ("embd", "attn", "resid")},
        data="time-machine",
        recurrence={"window": 16},
        **{"rows": 2, "windows": 2, "max_steps": 3, "validation_tokens": 100} | given,
    )
    options = read_run(folder / RUN)["options"]
    losses = [line["loss"] for line in log_of(folder) if "loss" in line]
    return {option: options[option] for option in FASTER}, losses


def test_faster_ways_are_taken(gpu, work):
    taken, losses = trained(work, faster=FASTER)
    assert taken == FASTER and len(losses) == 3
    assert gpu.asked == ["compile", "replay"] and "left out" not in work.console.file.getvalue()


def test_nobody_asks_for_them_on_a_cpu(gpu, work, monkeypatch):
    monkeypatch.setattr(RunContext, "on_gpu", False)
    assert trained(work, faster=FASTER)[0] == dict.fromkeys(FASTER, False) and not gpu.asked


@pytest.mark.parametrize(
    ("compiling", "recording", "taken"),
    [
        (
            Unsupported("an operation that it does not know"),
            False,
            {"compile": False, "replay": True},
        ),
        (None, True, {"compile": False, "replay": False}),
    ],
    ids=["no compiler", "no recorder"],
)
def test_what_is_refused_is_left_out_and_said(gpu, work, compiling, recording, taken):
    gpu.compiling, gpu.recording = compiling, recording
    found, losses = trained(work, faster=FASTER)
    said = " ".join(work.console.file.getvalue().split())
    assert found == taken and "It is left out here." in said
    if compiling is not None:
        assert (
            "cannot be compiled (an operation that it does not know): leave --compile out." in said
        )
    else:
        assert "The replayed step is wrong: the gradient of" in said
    # The run that asked for nothing, from its first step on.
    work.folder = work.folder.with_name("plain")
    assert trained(work)[1] == pytest.approx(losses, rel=1e-4)


def test_a_run_that_is_refused_on_its_way_begins_again_without(gpu, work, monkeypatch):
    """Nothing is gone on with that a wrong step has trained."""
    monkeypatch.setattr("holdover.training.compile_checks.NEXT_CHECK", 2)

    def look(*_, **__):
        looks.append(1)
        if len(looks) == 2:
            raise CompileMismatch("The compiled step is wrong.")

    looks = []
    monkeypatch.setattr("holdover.training.setup.check_gradients", look)
    taken, losses = trained(work, faster={"compile": True}, save_every=1)
    said = " ".join(work.console.file.getvalue().split())
    assert "After step 2: The compiled step is wrong." in said and not taken["compile"]
    work.folder = work.folder.with_name("plain")
    assert trained(work, save_every=1)[1] == losses and len(losses) == 3


@pytest.mark.parametrize(
    ("own", "ways"),
    [((True, True), 3), ((False, True), 2), ((True, False), 2), ((False, False), 1)],
)
def test_a_run_that_has_begun_has_its_own_way_and_slower_ones(gpu, work, monkeypatch, own, ways):
    its = dict(zip(FASTER, own, strict=True))
    monkeypatch.setattr("holdover.experiments.run_context.begun", lambda _: True)
    monkeypatch.setattr("holdover.experiments.run_context.read_about", lambda _: {"options": its})
    found = work._fallbacks(work.folder, FASTER)
    assert found[0] == its and len(found) == ways
    assert found[-1] == dict.fromkeys(FASTER, False)


def test_an_option_that_is_a_setting_is_not_left_out(gpu, work):
    gpu.compiling = Unsupported("an operation that it does not know")
    with pytest.raises(CompileMismatch, match="cannot be compiled"):
        trained(work, compile=True, faster={"replay": True})


def test_a_run_that_has_begun_goes_on_as_it_began(gpu, work):
    gpu.recording = True
    trained(work, faster=FASTER)
    # As if it had been stopped in its last step.
    (work.folder / "train" / FINISHED).unlink()
    gpu.asked.clear()
    assert trained(work, faster=FASTER)[0] == {"compile": False, "replay": False}
    assert not gpu.asked


def test_a_training_that_another_run_made_is_not_made_again(work):
    _, losses = trained(work)
    other, work.folder = work.folder / "train", work.folder.with_name("second")
    assert trained(work, made=[work.folder / "nothing", other])[1] == losses
    assert f"Trained already: {other}" in work.console.file.getvalue()
    # Either may be removed.
    shutil.rmtree(other)
    assert (last_checkpoint(work.folder / "train") / RUN).exists()
    assert (work.folder / "train" / "best").exists()


@pytest.mark.parametrize(
    ("given", "seed", "finished"),
    [
        ({"learning_rate": 1e-2}, 0, True),
        ({"max_steps": 4}, 0, True),
        ({}, 1, True),
        ({}, 0, False),
    ],
    ids=["another rate", "longer", "another seed", "stopped"],
)
def test_another_training_is_made(work, given, seed, finished):
    trained(work, schedule="cosine")
    other, work.folder, work.seed = work.folder / "train", work.folder.with_name("second"), seed
    if not finished:
        (other / FINISHED).unlink()
    trained(work, **{"schedule": "cosine", **given}, made=[other])
    assert "Trained already" not in work.console.file.getvalue()
