"""Compiled steps are believed when their gradients are right, not when their losses are."""

import io

import pytest
import torch
from rich.console import Console

from evaluations import prose
from holdover import RecurrenceConfig
from holdover.language.options import TrainOptions
from holdover.language.training import train
from holdover.recurrent.model import RecurrentModel
from holdover.training import compile_checks as compiled
from holdover.training import setup as run
from holdover.training.compile_checks import (
    CompileMismatch,
    check_is_due,
    distances,
    gradients_of,
    wrong_gradients,
)
from holdover.training.loop import Loop
from runs import OtherGradient

WINDOW = 8


class Begun(Exception):
    """A run was let in."""


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
        CompileMismatch, match=r"compiled step is wrong: the gradient of .*Leave --compile out\."
    ):
        train(TrainOptions(**options, bf16=bf16))
    assert not list(options["output"].glob("checkpoint-*"))


def test_gradients_that_are_not_there_are_wrong_ones(options, monkeypatch):
    compiles_to(monkeypatch, lambda loss: loss.detach().requires_grad_())
    with pytest.raises(CompileMismatch, match=r"differs by 100% from"):
        train(TrainOptions(**options))


@pytest.mark.parametrize("bf16", [False, True])
def test_right_ones_train_as_if_nobody_had_looked(options, monkeypatch, bf16):
    """Not at the beginning, and not behind the first step either."""
    monkeypatch.setattr(compiled, "NEXT_CHECK", 1)
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


def forms_compiled(options, monkeypatch):
    """What tells the forms of a step that a training would have compiled from one another."""
    forms = set()

    def compile_step(self):
        def step(window, carried, present, *rest):
            masked = window.mask is not None or present is not None
            forms.add((self.training, window.lower is not None, masked))
            return self._step(window, carried, present, *rest)

        self._compiled.step = step

    monkeypatch.setattr(RecurrentModel, "compile_step", compile_step)
    train(TrainOptions(**options))
    return forms


NOT_DRAWN = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}


@pytest.mark.parametrize("drawn", [False, True])
def test_a_step_that_draws_nothing_is_looked_at_in_the_form_it_trains_in(
    options, monkeypatch, drawn
):
    """Every form takes a deep model minutes to compile."""
    options["shape"] |= {} if drawn else NOT_DRAWN
    trained = {training for training, *_ in forms_compiled(options, monkeypatch)}
    assert trained == ({True, False} if drawn else {True})


def test_windows_beside_a_documents_end_have_the_form_of_all_others(options, monkeypatch, tmp_path):
    """On a GPU, where windows with masks of such widths are not compiled."""
    monkeypatch.setattr("holdover.recurrent.compile.MISREAD_ON", ("cpu", "cuda"))
    (tmp_path / "books").mkdir()
    for number in range(6):
        (tmp_path / "books" / f"{number}.txt").write_text(prose(60 + number))
    options |= {"data": str(tmp_path / "books"), "max_steps": 20}
    options["shape"] |= NOT_DRAWN
    options["recurrence"] = RecurrenceConfig(window=10, insert_layer=2, lower_layers="batched")
    assert forms_compiled(options, monkeypatch) == {(True, True, False)}


def test_looks_are_rarer_and_rarer():
    assert [step for step in range(1, 20_001) if check_is_due(step)] == [100, 1000, 10_000]


@pytest.fixture
def goes_wrong(options, monkeypatch):
    """A run of six steps whose compiler errs once weights have changed, as they do in the first."""
    monkeypatch.setattr(compiled, "NEXT_CHECK", 2)
    begun = []
    compiles_to(monkeypatch, lambda loss: OtherGradient.apply(loss) if begun else loss)
    settle = Loop._settle

    def settled(self):
        begun.append(self.progress.step)
        settle(self)

    monkeypatch.setattr(Loop, "_settle", settled)
    return options | {"max_steps": 6, "save_every": 1, "keep": 9, "bf16": True}


def test_errors_that_grow_with_the_weights_are_found_before_they_are_saved(goes_wrong):
    sentence = r"After step 2: The compiled step is wrong: .* may be wrong: begin again\."
    with pytest.raises(CompileMismatch, match=sentence):
        train(TrainOptions(**goes_wrong))
    found = {path.name for path in goes_wrong["output"].glob("checkpoint-*")}
    assert found == {"checkpoint-0", "checkpoint-1"}


def test_a_run_that_goes_on_is_looked_at_too(options, monkeypatch):
    compiles_to(monkeypatch, lambda loss: loss)
    train(TrainOptions(**options))
    compiles_to(monkeypatch, OtherGradient.apply)
    with pytest.raises(CompileMismatch, match="compiled step is wrong"):
        train(TrainOptions(**options | {"max_steps": 3}), resume=True)


def test_without_memory_a_late_look_is_left_out_and_said(options, monkeypatch):
    monkeypatch.setattr(compiled, "NEXT_CHECK", 1)
    compiles_to(monkeypatch, lambda loss: loss)
    looked = []

    def look(*_, **__):
        looked.append(1)
        if len(looked) > 1:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(run, "check_gradients", look)
    console = Console(file=io.StringIO(), width=200)
    reached = train(TrainOptions(**options), console=console)
    assert reached.step == 2 and "was not checked after step 1" in console.file.getvalue()


def test_a_look_without_memory_leaves_no_gradients_to_the_next_step():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))

    def loss():
        model[1](torch.ones(2)).sum().backward()
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        gradients_of(model, loss)
    assert all(weight.grad is None for weight in model.parameters())


def test_a_look_at_a_run_is_in_float32_too(options, monkeypatch):
    """A run puts its precision around the model's forward."""
    monkeypatch.setattr(compiled, "NEXT_CHECK", 1)
    compiles_to(monkeypatch, lambda loss: loss)
    seen, written = [], RecurrentModel._step

    def step(self, *arguments):
        if not self.compiled and torch.is_grad_enabled():
            seen.append(torch.is_autocast_enabled("cpu"))
        return written(self, *arguments)

    monkeypatch.setattr(RecurrentModel, "_step", step)
    train(TrainOptions(**options, bf16=True))
    first, later = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert first == later and {True, False} == set(first)


@pytest.mark.parametrize(
    ("luck", "told"), [((0.05, 0.04, 0.08), False), ((0.05, 0.04, 0.05), True)]
)
def test_one_draw_of_rounding_is_no_measure_of_it(options, monkeypatch, luck, told):
    """Of deep models: 18 % away from float32, where the step as written was 5 % away by luck."""
    compiles_to(monkeypatch, lambda loss: loss)
    exact = {"weight": torch.ones(64)}
    away = iter([0.18, 0.05, 0.0, *luck])
    weights = []

    def gradients(model, *_):
        weights.append(model.backbone.transformer.wte.weight.detach().clone())
        return {"weight": exact["weight"] * (1 + next(away))}

    monkeypatch.setattr(compiled, "gradients", gradients)
    seen = []

    def begin(options, model, *_, **__):
        seen.append(model)
        raise Begun

    monkeypatch.setattr(run, "build_loop", begin)
    with pytest.raises(
        CompileMismatch if told else Begun, match="differs by 18%" if told else None
    ):
        train(TrainOptions(**options, bf16=True))
    first, *_, moved = weights
    assert 0 < ((moved - first) / first).abs().max() <= 1.01 * compiled.ROUNDED_BY
    assert told or torch.equal(seen[0].backbone.transformer.wte.weight, first)


def test_looking_keeps_one_window_at_a_time_and_training_what_was_asked_for(options, monkeypatch):
    """In float32 a step takes twice its memory: whoever has room for the step has it for the look."""
    compiles_to(monkeypatch, lambda loss: loss)
    seen, written = [], RecurrentModel._step

    def step(self, *arguments):
        seen.append((not self.compiled, torch.is_grad_enabled(), self.recompute))
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
    wrong = list(wrong_gradients(found, exact, distances(rounded, exact)))
    assert [one.name for one in wrong] == ["weight"] * told
