"""The commands and the Python example of docs/forecasting.md run, with shorter trainings."""

import json
import re
import shlex
from pathlib import Path

import pytest

from forecasts import seasonal_csv
from holdover.cli import entry as cli
from holdover.forecasting.data.named import open_series
from holdover.forecasting.models.registry import FORECASTERS

GUIDE = (Path(__file__).parents[2] / "docs" / "forecasting.md").read_text()
TINY = "d_model=16,n_heads=8,d_ff=16"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.S)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seasonal_csv(tmp_path / "power.csv", rows=360)
    return tmp_path


def shortened(words: list[str]) -> list[str]:
    if words[1:3] != ["forecast", "train"]:
        return words[1:]
    shape = {"shape=rsa=true": f"shape={TINY},rsa=true"}
    shorter = [shape.get(word, word) for word in words[1:]]
    if "informer" in words and shorter == words[1:]:
        shorter.append(f"shape={TINY}")
    return [*shorter, "epochs=1", "rows=64"]


def test_the_commands(here, capsys):
    commands = [shlex.split(line) for line in blocks("")[0].splitlines()]
    assert [words[2] for words in commands] == [*3 * ["train"], "eval", "predict", "plot"]
    for words in commands:
        assert cli.main(shortened(words)) == 0, capsys.readouterr().err
    record = json.loads((here / "runs/rsa-eval/forecast_eval.json").read_text())
    names = [row["name"] for row in record["rows"]]
    assert names == ["rsa", "informer", "dlinear", "repeat", "seasonal"]
    assert record["model"]["config"]["rsa"] is True
    assert len(open_series("runs/tomorrow.csv")) == 24
    for name in ("tomorrow.png", "tomorrow.svg", "plots/window.png", "plots/error_by_step.png"):
        assert (here / "runs" / name).exists()


def test_the_table_of_forecasters():
    assert set(re.findall(r"^\| `(\w+)` \|", GUIDE, re.M)) == set(FORECASTERS)


def test_the_same_in_python(here, capsys):
    (example,) = blocks("python")
    exec(example.replace("epochs=3", "epochs=1"), {})
    said = capsys.readouterr().out.splitlines()[-1]
    assert "2020-01-16T00:00:00" in said
