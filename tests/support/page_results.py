"""The results that the pages promise for their commands, given what each printed, and their Python."""

import json
from pathlib import Path

import holdover
from holdover.cli import entry as cli
from holdover.experiments.records import read_records
from holdover.forecasting.data.named import open_series
from holdover.questions.files import read_questions


def readme_commands(place, printed):
    record = json.loads((place / "runs/plain-eval/eval.json").read_text())
    assert [row["overlap"] for row in record["rows"]] == [0, 5, 10, 30, 50]
    assert (place / "book.hold").exists() and (place / "page.html").exists()


def training_commands(place, printed):
    recurrent, plain, rsa = (
        json.loads((place / f"runs/{name}-eval/eval.json").read_text())
        for name in ("recurrent", "plain", "rsa")
    )
    assert plain["model"]["recurrence"]["carry"] == "none" and "state" in recurrent["rows"][0]
    assert recurrent["rows"][0]["per_unit"]["tokens"] == plain["rows"][0]["per_unit"]["tokens"]
    assert rsa["model"]["recurrence"]["rsa"] and rsa["model"]["recurrence"]["carry"] == "none"
    assert (place / "runs/plots/training.png").exists()


def forecasting_commands(place, printed):
    record = json.loads((place / "runs/rsa-eval/forecast_eval.json").read_text())
    names = [row["name"] for row in record["rows"]]
    assert names == ["rsa", "informer", "dlinear", "repeat", "seasonal"]
    assert record["model"]["config"]["rsa"] is True
    assert len(open_series("runs/tomorrow.csv")) == 24
    for name in ("tomorrow.png", "tomorrow.svg", "plots/window.png", "plots/error_by_step.png"):
        assert (place / "runs" / name).exists()


def qa_commands(place, printed):
    record = json.loads((place / "runs/qa-eval/qa_eval.json").read_text())
    assert [row["name"] for row in record["rows"]] == ["recurrent", "plain"]
    assert "window" in printed[-1].splitlines()[-2]


OF_COMMANDS = {
    "README.md": readme_commands,
    "docs/training.md": training_commands,
    "docs/forecasting.md": forecasting_commands,
    "docs/qa.md": qa_commands,
}


def readme_python(place, lines):
    assert (place / "book.state").stat().st_size < 8192
    again = holdover.RecurrentModel.from_pretrained(place / "my-model")
    again.adopt(holdover.State.load(place / "book.state"))


def training_python(place, lines):
    assert float(lines[-1]) > 1
    assert len(json.loads((place / "runs/python-eval/eval.json").read_text())["rows"]) == 2


def forecasting_python(place, lines):
    assert "2020-01-16T00:00:00" in lines[-1]


def qa_python(place, lines):
    *_, start, stop = lines[-1].split()
    assert 0 <= int(start) < int(stop)
    (question,) = read_questions(Path("shown.json"))
    assert question.answer in question.context and question.type == "bridge"


def experiments_python(place, lines):
    results = ["--results", "results"]
    run = ["run", "mine.py", "--device", "cpu", *results, "--output", "runs"]
    assert cli.main(run) == 0
    records = read_records(place / "results" / "mine" / "smoke")
    assert set(records.found) == {"plain-seed0", "pooled-seed0"}
    assert cli.main(["report", *results, "--output", "page.html", "--scales", "smoke"]) == 0


OF_PYTHON = {
    "README.md": readme_python,
    "docs/training.md": training_python,
    "docs/forecasting.md": forecasting_python,
    "docs/qa.md": qa_python,
    "docs/experiments.md": experiments_python,
}
