"""Compiled steps are believed when their gradients are right, not when their losses are."""

import pytest
import torch

from evaluations import prose
from holdover import RecurrenceConfig
from holdover.attach import RecurrentModel
from holdover.train import TrainOptions, train
from holdover.train.compiled import NotAsWritten, wrong_gradients
from runs import OtherGradient

WINDOW = 8


@pytest.fixture
def options(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(prose(400))
    return {
        "model": "gpt2",
        "from_scratch": True,
        "shape": {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 64, "attn_pdrop": 0.1},
        "data": str(path),
        "cache_dir": tmp_path / "cache",
        "tokenizer": "bytes",
        "output": tmp_path / "run",
        "recurrence": RecurrenceConfig(window=WINDOW, insert_layer=1),
        "rows": 2,
        "windows": 3,
        "max_steps": 2,
        "compile": True,
    }


def compiles_to(monkeypatch, change):
    """A compiler whose step is as it was written, but for a change of its loss."""

    def compile_step(self):
        def step(*arguments):
            output, *rest = self._step(*arguments)
            return {**output, "loss": change(output["loss"])}, *rest

        self._compiled.step = step

    monkeypatch.setattr(RecurrentModel, "compile_step", compile_step)


@pytest.mark.parametrize("bf16", [False, True])
def test_wrong_gradients_are_refused_though_the_loss_is_right(options, monkeypatch, bf16):
    compiles_to(monkeypatch, OtherGradient.apply)
    with pytest.raises(
        NotAsWritten, match=r"compiled step is wrong: the gradient of .*Leave --compile out\."
    ):
        train(TrainOptions(**options, bf16=bf16))
    assert not list(options["output"].glob("checkpoint-*"))


@pytest.mark.parametrize("bf16", [False, True])
def test_right_ones_train_as_if_nobody_had_looked(options, monkeypatch, bf16):
    compiles_to(monkeypatch, lambda loss: loss)
    train(TrainOptions(**options, bf16=bf16))
    options["output"] = options["output"].with_name("other")
    train(TrainOptions(**options, bf16=bf16, check_compiled=False))
    logs = [
        (options["output"].with_name(name) / "log.jsonl").read_text().splitlines()
        for name in ("run", "other")
    ]
    losses = [[line.partition('"loss": ')[2].partition(",")[0] for line in log] for log in logs]
    assert losses[0] == losses[1] and any(losses[0])


@pytest.mark.parametrize("pooling", ["fixed-key", "attention"])
def test_states_that_mixed_precision_leaves_in_16_bits_are_looked_at_too(
    options, monkeypatch, pooling
):
    compiles_to(monkeypatch, lambda loss: loss)
    options["recurrence"] = options["recurrence"].replace(pooling=pooling)
    train(TrainOptions(**options, bf16=True))
    assert list(options["output"].glob("checkpoint-*"))


def test_looking_keeps_one_window_at_a_time_and_training_what_was_asked_for(options, monkeypatch):
    """In float32 a step takes twice its memory: whoever has room for the step has it for the look."""
    compiles_to(monkeypatch, lambda loss: loss)
    seen, written = [], RecurrentModel._step

    def step(self, *arguments):
        seen.append((self._compiled.step is None, torch.is_grad_enabled(), self.recompute))
        return written(self, *arguments)

    monkeypatch.setattr(RecurrentModel, "_step", step)
    train(TrainOptions(**options, bf16=True))
    looked = {kept for uncompiled, trains, kept in seen if uncompiled and trains}
    trained = {kept for uncompiled, trains, kept in seen if not uncompiled and trains}
    assert (looked, trained) == ({"window"}, {"none"})


def test_nobody_looks_where_it_was_not_wanted(options, monkeypatch):
    compiles_to(monkeypatch, OtherGradient.apply)
    train(TrainOptions(**options, check_compiled=False))
    assert list(options["output"].glob("checkpoint-*"))


@pytest.mark.parametrize(
    ("numbers", "rounding", "told"), [(64, 0.01, True), (4, 0.01, False), (4, 0.0, True)]
)
def test_few_numbers_are_judged_where_nothing_rounds_them(numbers, rounding, told):
    exact = {"weight": torch.ones(numbers)}
    rounded = {"weight": torch.full((numbers,), 1 + rounding)}
    found = {"weight": torch.full((numbers,), 1.3)}
    wrong = list(wrong_gradients(found, exact, rounded))
    assert [one.name for one in wrong] == ["weight"] * told
