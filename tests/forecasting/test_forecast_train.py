"""Training forecasters on the one loop: they learn, move every weight, and continue exactly."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console

from forecasts import INFORMER, command, evaluate, mse_of, seasonal_csv, train
from holdover.cli import entry as cli
from holdover.forecasting.data.named import open_table
from holdover.forecasting.data.prepare import prepare
from holdover.forecasting.folder import build_forecaster, open_forecaster
from holdover.forecasting.models.base import Forecaster
from holdover.forecasting.models.informer import Informer
from holdover.forecasting.models.informer_config import InformerConfig
from holdover.forecasting.options import ForecastOptions
from holdover.forecasting.task import Forecasting, record
from holdover.training.compile_checks import CompileMismatch
from runs import (
    OtherGradient,
    best_of,
    checkpoints_of,
    log_of,
    refusal,
    steps_of,
    timeless,
    validations_of,
    weights_of,
)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("dlinear", {"epochs": 4}),
        ("lstm", {"epochs": 4, "shape": "hidden_size=16"}),
        ("informer", {"epochs": 5, "lr": 3e-3, "shape": INFORMER}),
        ("informer", {"epochs": 5, "lr": 3e-3, "shape": f"{INFORMER},rsa=true"}),
    ],
    ids=["dlinear", "lstm", "informer", "rsa-informer"],
)
def test_they_learn_a_season(model, settings, tmp_path):
    run = train(tmp_path, model=model, schedule="constant", **settings)
    losses = [line["valid_loss"] for line in validations_of(run)]
    assert min(losses) < losses[0] / 2
    found = mse_of(evaluate(run))
    # The mean of the training rows would have an error of about 1, whatever is asked for.
    assert found["run"] < 0.5 and found["run"] < found["repeat"]


def test_the_recurrence_of_every_layer_moves(tmp_path):
    shape = f"{INFORMER},rsa=true,mix=false"
    run = train(tmp_path, model="informer", shape=shape, epochs=1, lr=1e-3)
    first, last = (weights_of(run, step) for step in (0, checkpoints_of(run)[-1]))
    recurrent = [name for name in first if name.rsplit(".", 1)[-1] in ("nu", "theta", "mu")]
    assert len(recurrent) == 3 * 3
    for name in recurrent:
        assert (first[name] != last[name]).any(), name
    assert all((first[name] != last[name]).any() for name in first if "norm" not in name)


def test_mixed_precision(tmp_path):
    run = train(tmp_path, model="informer", shape=INFORMER, epochs=1, bf16=True)
    assert {str(weight.dtype) for weight in weights_of(run, 6).values()} == {
        "torch.float32",
        "torch.int64",
    }
    losses = [line["valid_loss"] for line in validations_of(run)]
    assert losses[1] < losses[0]


def test_the_rate_halves_and_every_epoch_is_validated(tmp_path):
    run = train(tmp_path, epochs=3, lr=1e-3)
    a_epoch = len(steps_of(run)) // 3
    rates = [line["learning_rate"] for line in steps_of(run)]
    assert rates == [1e-3] * 2 * a_epoch + [5e-4] * a_epoch
    assert [line["step"] for line in validations_of(run)] == [0, a_epoch, 2 * a_epoch, 3 * a_epoch]


def test_an_epoch_that_ends_within_a_step_is_validated_behind_it(tmp_path):
    run = train(tmp_path, rows=61, accumulate=2)
    # 181 windows: three batches an epoch, two batches a step.
    assert [line["step"] for line in validations_of(run)] == [0, 2, 3]


def test_another_end_goes_with_halving(tmp_path):
    train(tmp_path, epochs=1)
    assert cli.main(command(tmp_path, epochs=2, resume=True)) == 0
    assert log_of(tmp_path / "run")[-1]["step"] == 12


@pytest.mark.parametrize("dies_in_step", [2, 5, 8])
def test_killed_and_continued_is_undisturbed(dies_in_step, tmp_path, monkeypatch):
    given = {
        "model": "informer",
        "shape": "d_model=8,n_heads=8,d_ff=8,rsa=true,dropout=0.1",
        "rows": 64,
        "epochs": 3,
        "save_every": 2,
        "keep": 20,
    }
    whole = train(tmp_path, **given, output=tmp_path / "whole")
    loss, made = Forecasting.loss, 0

    def dying(*arguments):
        nonlocal made
        made += 1
        if made > dies_in_step:
            raise RuntimeError("killed")
        return loss(*arguments)

    monkeypatch.setattr(Forecasting, "loss", dying)
    broken = {**given, "output": tmp_path / "broken"}
    with pytest.raises(RuntimeError, match="killed"):
        cli.main(command(tmp_path, **broken))
    monkeypatch.setattr(Forecasting, "loss", loss)
    assert cli.main(["forecast", "train", "--output", str(tmp_path / "broken"), "--resume"]) == 0
    assert checkpoints_of(whole)[-1] == 9 and best_of(whole) == best_of(tmp_path / "broken")
    for step in checkpoints_of(whole):
        ours, theirs = weights_of(whole, step), weights_of(tmp_path / "broken", step)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert timeless(log_of(whole)) == timeless(log_of(tmp_path / "broken"))


def test_a_run_is_continued_in_the_same_file(tmp_path, capsys):
    train(tmp_path, epochs=1)
    data = tmp_path / "power.csv"
    data.write_text(data.read_text().replace("100.", "101.", 1))
    said = refusal(capsys, command(tmp_path, epochs=2, resume=True))
    assert "The content of power.csv has changed since this run began" in said
    said = refusal(capsys, command(tmp_path, epochs=2, ahead=7, resume=True))
    assert "ahead was 6 and is now 7" in said


def test_windows_in_order_or_shuffled(tmp_path):
    command(tmp_path)
    options = ForecastOptions.of(
        model="dlinear", data=str(tmp_path / "power.csv"), past=24, ahead=6
    )
    prepared = prepare(open_table(options), options)
    numbers = {}
    for order in ("shuffled", "sequential"):
        changed = ForecastOptions.of(model="dlinear", data=options.data, order=order)
        task = Forecasting(prepared, changed, torch.device("cpu"))
        batches = list(task.batches(0, 0))
        assert len(batches) == task.length(0) == 6
        assert sum(batch.tokens for batch in batches) == task.tokens() == 181 * 24
        numbers[order] = np.concatenate([batch.numbers for batch in batches])
        behind = np.concatenate([batch.numbers for batch in task.batches(0, 4)])
        assert (behind == numbers[order][4 * 32 :]).all()
    assert (numbers["sequential"] == np.arange(181)).all()
    assert (numbers["shuffled"] != np.arange(181)).any()
    assert (np.sort(numbers["shuffled"]) == np.arange(181)).all()


@pytest.mark.parametrize("model", ["repeat", "seasonal"])
def test_what_has_nothing_to_learn_is_saved_at_once(model, tmp_path, capsys):
    run = train(tmp_path, model=model)
    found = sorted(path.name for path in run.iterdir() if not path.name.startswith("."))
    assert found == [
        "config.json",
        "holdover_run.json",
        "holdover_series.json",
        "model.safetensors",
    ]
    saved = open_forecaster(run)
    assert saved.kind == model and saved.run["options"]["past"] == 24
    assert getattr(saved.model.config, "period", 24) == 24
    assert "holds a forecaster already" in refusal(capsys, command(tmp_path, model=model))
    assert "has nothing to learn" in refusal(capsys, command(tmp_path, model=model, resume=True))


def test_a_saved_forecaster_has_its_columns_and_scaler(tmp_path):
    run = train(tmp_path, features="MS", target="load")
    saved = open_forecaster(run)
    # The target is the last input.
    assert saved.recipe.inputs == ("temperature", "load") and saved.recipe.outputs == ("load",)
    assert (saved.model.config.enc_in, saved.model.config.c_out) == (2, 1)
    table = open_table(ForecastOptions.of(model="dlinear", data=str(tmp_path / "power.csv")))
    training = table.series[0].values[:210]
    assert saved.recipe.scaler.mean[0] == pytest.approx(training.mean(0)[::-1])
    assert saved.recipe.scaler.deviation[0] == pytest.approx(training.std(0)[::-1])
    assert json.loads((run / "best" / "holdover_series.json").read_text())["ahead"] == 6


def test_python_trains_as_the_command_line_does(tmp_path):
    from holdover.forecasting.training import train_forecaster

    run = train(tmp_path)
    options = {"model": "dlinear", "data": str(tmp_path / "power.csv"), "past": 24, "ahead": 6}
    options |= {"lr": 1e-2, "epochs": 2, "device": "cpu", "output": tmp_path / "again"}
    reached = train_forecaster(ForecastOptions.of(**options), console=Console(quiet=True))
    assert reached.finished == "2 epochs were read"
    ours, theirs = (weights_of(folder, reached.step) for folder in (run, tmp_path / "again"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_only_whole_batches_are_replayed(tmp_path):
    """A recorded step has the shape of a whole batch; the last batch of an epoch may be smaller."""
    data = str(seasonal_csv(tmp_path / "power.csv"))
    options = ForecastOptions.of(model="dlinear", data=data, past=24, ahead=6, rows=50)
    prepared = prepare(open_table(options), options)
    model = build_forecaster("dlinear", prepared.recipe)
    task = Forecasting(prepared, options, torch.device("cpu"))
    task.record(model)
    assert task.replayed is None, "there is nothing to record on a CPU"
    replayed = []

    def replay(values, marks, future_marks):
        replayed.append(len(values))
        return model.forecast(values, marks, future_marks)

    task.replayed = replay
    sizes = []
    for batch in prepared.train.batches(50):
        sizes.append(len(batch.values))
        task.loss(model, batch, None, batch.scored)
    assert sizes[-1] < 50 and replayed == [50] * (len(sizes) - 1) != []


@pytest.fixture
def compiles_to(monkeypatch):
    """A fake compiler that adds a change to the forecasts of the model and counts its calls."""
    sizes = []

    def use(change):
        def compile_reading(self):
            def read(values, *more):
                sizes.append(len(values))
                return change(self.read(values, *more))

            self._compiled = read

        monkeypatch.setattr(Forecaster, "compile_reading", compile_reading)
        return sizes

    return use


COMPILED = {"model": "informer", "shape": INFORMER, "epochs": 1, "compile": True}


@pytest.mark.parametrize("bf16", [False, True])
def test_compiled_whole_batches_train_alike(tmp_path, compiles_to, bf16):
    sizes = compiles_to(lambda forecast: forecast)
    settings = COMPILED | {"rows": 50, "bf16": bf16}
    run = train(tmp_path, **settings)
    steps = len(steps_of(run))
    # One is compared before the first step, and an epoch's last batch is smaller.
    assert sizes == [50] * steps
    written = train(tmp_path, output=tmp_path / "written", **settings | {"compile": False})
    assert timeless(log_of(run)) == timeless(log_of(written))


def test_compiled_forecasts_with_other_gradients_are_refused(tmp_path, compiles_to, capsys):
    compiles_to(OtherGradient.apply)
    sentence = "The compiled step is wrong: the gradient of"
    assert sentence in refusal(capsys, command(tmp_path, **COMPILED))
    train(tmp_path, check_compiled=False, **COMPILED)


# torch's own, while it follows a function with a gradient of its own.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("rsa", [{}, {"rsa": True}, {"rsa": True, "lazy_rem": True}], ids=str)
@pytest.mark.sampled(3)
def test_a_compiler_can_follow_informer_to_its_end(rsa):
    """The whole `read` is one graph with the same random numbers; a backend that does not compile."""
    torch.manual_seed(0)
    sizes = {"seq_len": 12, "label_len": 6, "pred_len": 6, "d_model": 16, "n_heads": 8, "d_ff": 16}
    model = Informer(InformerConfig(**sizes, **rsa)).train()
    given = torch.randn(2, 12, 7), torch.randn(2, 12, 4), torch.randn(2, 6, 4)

    def forecast():
        torch.manual_seed(1)
        return model.forecast(*given)

    expected = forecast()
    model._compiled = torch.compile(model.read, fullgraph=True, dynamic=False, backend="aot_eager")
    assert torch.equal(forecast(), expected)
    with model.uncompiled():
        assert model._compiled is None
    model.eval()
    with torch.compiler.set_stance("fail_on_recompile"):
        model.forecast(*given)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_record_of_forecasts_is_compared_before_it_is_used(tmp_path, monkeypatch, wrong):
    data = str(seasonal_csv(tmp_path / "power.csv"))
    options = ForecastOptions.of(model="informer", data=data, past=24, ahead=6, rows=8)
    prepared = prepare(open_table(options), options)
    shape = {"d_model": 16, "n_heads": 8, "d_ff": 16}
    model = build_forecaster("informer", prepared.recipe, shape).train()
    batch = next(iter(prepared.train.batches(8)))

    def recorder(module, given, allow_unused_input, pool):
        module(*given)
        change = OtherGradient.apply if wrong else (lambda forecast: forecast)
        return lambda *tensors: change(module(*tensors))

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", recorder)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    numbers = torch.get_rng_state()
    if wrong:
        with pytest.raises(CompileMismatch, match="The replayed step is wrong"):
            record(model, batch)
    else:
        record(model, batch)
    assert before and all(torch.equal(before[name], it) for name, it in model.named_buffers())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(weight.grad is None for weight in model.parameters())
