"""The one setup, on an application of a few lines: a line through points."""

import io
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from holdover.runs.processes import Share
from holdover.training.options import LoopOptions
from holdover.training.setup import Application, train


@dataclass(frozen=True, kw_only=True)
class LineOptions(LoopOptions):
    model: str = "line"
    data: str = "points"


class LineTask:
    decides = "loss"

    def __init__(self, application):
        self.application = application

    def record(self, model):
        self.application.calls.append("record")

    def batches(self, epoch, start):
        for number in range(start, 4):
            x = torch.arange(3.0) + number + epoch
            yield SimpleNamespace(x=x[:, None], scored=3, tokens=3, idle=False)

    def length(self, epoch):
        return 4

    def tokens(self):
        return 12

    def loss(self, model, batch, carried, count):
        noise = torch.randn_like(batch.x)
        return (model(batch.x) - 2 * batch.x + noise).square().sum() / count, None

    def validate(self, model):
        return {"loss": float((model.weight - 2).square().sum())}

    def alarm(self, model, measures):
        return None


class Line(Application):
    unit = "points"

    def __init__(self, options, checksum="a"):
        super().__init__(options)
        self.checksum = checksum
        self.calls = []

    def check(self, device):
        self.calls.append("check")

    def open_data(self, console):
        self.calls.append("open_data")
        return {"sha256": self.checksum}

    def checksums(self, data):
        return {"content of the points": data["sha256"]}

    def build_model(self, checkpoint):
        self.calls.append("build_model")
        model = torch.nn.Linear(1, 1)
        if checkpoint is not None:
            model.load_state_dict(load_file(checkpoint / "line.safetensors"))
        return model

    def make_task(self, model, device, share):
        assert share == Share()
        self.calls.append("make_task")
        return LineTask(self)

    def describe(self, model, task):
        self.calls.append("describe")
        return "A line."

    def save(self, folder, model, weights):
        self.calls.append("save")
        save_file(model.state_dict(), folder / "line.safetensors")


def trained(output, steps, resume=False, **given):
    options = LineOptions(output=output, max_steps=steps, device="cpu", learning_rate=0.1)
    application = Line(options, **given)
    console = Console(file=io.StringIO(), width=200)
    progress = train(application, resume=resume, console=console)
    return application, progress, console.file.getvalue()


ORDER = ["check", "open_data", "build_model", "make_task", "describe", "record"]


def test_every_step_of_a_setup_comes_in_one_order(tmp_path):
    application, progress, output = trained(tmp_path, 8)
    assert application.calls[:6] == ORDER and set(application.calls[6:]) == {"save"}
    assert progress.step == 8 and output.startswith("A line.\n") and "points/s" not in output


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path):
    trained(tmp_path / "whole", 7)
    trained(tmp_path / "cut", 3)
    application, progress, output = trained(tmp_path / "cut", 7, resume=True)
    assert application.calls[:6] == ORDER and progress.step == 7
    assert "Continuing after step 3" in output
    weights = [
        load_file(tmp_path / run / "checkpoint-7" / "line.safetensors") for run in ("whole", "cut")
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_other_data_is_refused_before_a_model_is_built(tmp_path):
    trained(tmp_path, 3)
    with pytest.raises(ValueError, match=r"The content of the points has changed .* --resume\."):
        trained(tmp_path, 7, resume=True, checksum="b")


def test_a_model_without_weights_to_learn_is_only_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(Line, "learns", False)
    application, progress, output = trained(tmp_path, 8)
    assert application.calls == [*ORDER[:5], "save"]
    assert progress.finished == "there was nothing to learn" and "nothing to learn" in output
    assert (tmp_path / "holdover_run.json").is_file() and not (tmp_path / "log.jsonl").exists()
