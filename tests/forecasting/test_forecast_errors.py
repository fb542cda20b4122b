"""Bad settings, files and folders: one sentence says what is wrong and what to do."""

import json

import pytest

from csvs import hourly, wide
from forecasts import COLUMNS, command, seasonal_csv, seasonal_values, train
from holdover.cli import entry as cli
from runs import refusal


def test_a_model_that_is_none(tmp_path, capsys):
    said = refusal(capsys, command(tmp_path, model="transformer"))
    assert "--model 'transformer' is not a forecaster: choose from informer, dlinear, lstm" in said
    assert "choose from informer" in refusal(capsys, command(tmp_path, model=None))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"data": None}, "--data is missing"),
        ({"data": "nowhere.csv"}, "'nowhere.csv' is neither a file nor a named data set"),
        ({"past": 0}, "--past 0 must be at least 1"),
        ({"rows": 0}, "--rows 0 must be at least 1"),
        ({"label_len": 4}, "--label-len 4 is for a decoder, and dlinear has none"),
        ({"compile": True}, "--compile is for informer, and dlinear is small: leave it out."),
        ({"added_learning_rate": 1e-3}, "a forecaster is trained as a whole"),
        ({"shape": "moving_avrage=3"}, "did you mean moving_average?"),
        ({"shape": "moving_average=4"}, "moving_average=4 must be odd"),
        ({"shape": "moving_average=many"}, "A dlinear cannot have this shape"),
        ({"shape": "pred_len=3"}, "pred_len is determined by --data, --past"),
        (
            {"model": "repeat", "shape": "period=3"},
            "not a setting of repeat; it has no settings",
        ),
        ({"model": "seasonal", "past": 12}, "period=24 must be at most seq_len=12"),
        ({"model": "informer", "label_len": 25}, "--label-len 25 must be at most seq_len=24"),
        ({"model": "informer", "shape": "d_model=9,n_heads=2"}, "d_model=9 must be even"),
        ({"features": "S"}, "set --target to one of load, temperature"),
        ({"order": "random"}, "--order 'random' is not valid: expected"),
        ({"split": "70/30"}, "--split '70/30' has an unknown form"),
        ({"schedule": "falling"}, "--schedule 'falling' is not valid: expected"),
        ({"device": "tpu"}, "--device 'tpu' is not valid: expected"),
        ({"validate_every": 0}, "--validate-every 0 must be at least 1"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_settings(settings, sentence, tmp_path, capsys):
    assert sentence in refusal(capsys, command(tmp_path, **settings))
    assert not list(tmp_path.glob("run/checkpoint-*"))


def test_a_flag_that_is_none(tmp_path, capsys):
    assert "did you mean --past" in refusal(capsys, [*command(tmp_path), "--pst", "3"])
    assert "'aheed' is not a setting; did you mean ahead" in refusal(
        capsys, [*command(tmp_path), "aheed=3"]
    )


def changed(tmp_path, line, text):
    """The CSV with one of its lines (from 1) replaced."""
    data = seasonal_csv(tmp_path / "power.csv")
    lines = data.read_text().splitlines()
    lines[line - 1] = text
    data.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("line", "text", "sentence"),
    [
        (5, "2020-01-01 03:00:00,high,5.0", "line 5, column load: 'high' is"),
        (5, "2020-01-01 03:00:00,,5.0", "column load"),
        (5, "2020-01-01 03:00:00,nan,5.0", "column load"),
        (5, "tomorrow,1.0,5.0", "line 5, column date: 'tomorrow' is not a time"),
        (5, "2020-01-01 03:00:00,1.0", "line 5: 2 cells, but the header has 3"),
        (1, "day,load,temperature", "has no column of times"),
        (5, "2020-01-01 02:00:00,1.0,5.0", "02:00:00"),
    ],
    ids=["word", "empty", "nan", "time", "cells", "header", "twice"],
)
def test_bad_csvs(line, text, sentence, tmp_path, capsys):
    changed(tmp_path, line, text)
    said = refusal(capsys, command(tmp_path))
    assert "power.csv" in said and sentence in said


def test_too_few_rows(tmp_path, capsys):
    seasonal_csv(tmp_path / "power.csv", rows=40)
    said = refusal(capsys, command(tmp_path))
    assert (
        "the train part has 28 rows, too few for one window of 30 (--past 24 + --ahead 6)" in said
    )
    seasonal_csv(tmp_path / "power.csv", rows=55)
    said = refusal(capsys, command(tmp_path, output=tmp_path / "other", ahead=12))
    assert "the valid part has 6 rows, too few for one window of 12" in said


def test_a_column_that_never_changes_is_told(tmp_path, capsys):
    values = seasonal_values(300)
    values[:, 1] = 7.0
    data = wide(tmp_path / "power.csv", hourly(300), values, list(COLUMNS))
    train(tmp_path, data=data, epochs=1)
    assert "constant in the training rows, divided by 1: temperature" in capsys.readouterr().out


def test_a_loss_that_is_no_number_stops_the_run(tmp_path, capsys):
    said = refusal(capsys, command(tmp_path, lr=1e30, epochs=3))
    assert "training stopped, and checkpoint-0 is the last good checkpoint" in said


def test_a_folder_is_used_once(tmp_path, capsys):
    train(tmp_path, epochs=1)
    assert "holds a run already: continue it with --resume" in refusal(capsys, command(tmp_path))
    elsewhere = command(tmp_path, output=tmp_path / "none", resume=True)
    assert "There is no run in" in refusal(capsys, elsewhere)


def test_what_is_no_forecaster(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for folder, sentence in (
        (tmp_path / "empty", "is empty"),
        (tmp_path / "nowhere", "is not a forecaster (it has no holdover_series.json)"),
    ):
        output = str(tmp_path / "out")
        for verb in ("eval", "predict"):
            words = ["forecast", verb, "--model", str(folder), "--output", f"{output}-{verb}"]
            assert sentence in refusal(capsys, words)
        assert sentence in refusal(capsys, ["forecast", "plot", str(folder), "--output", output])
    assert "Say which model" in refusal(capsys, ["forecast", "eval"])


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "holdover_series.json"])
def test_damaged_files(file, tmp_path, capsys):
    run = train(tmp_path, epochs=1)
    path = run / "best" / file
    path.write_bytes(path.read_bytes()[:40])
    words = ["forecast", "predict", "--model", str(run), "--output", str(tmp_path / "next.csv")]
    assert "is truncated or damaged" in refusal(capsys, words)
    assert "is truncated or damaged" in refusal(capsys, command(tmp_path, epochs=2, resume=True))


def test_a_recipe_that_is_not_the_models(tmp_path, capsys):
    run = train(tmp_path, epochs=1)
    path = run / "best" / "holdover_series.json"
    recipe = json.loads(path.read_text())
    path.write_text(json.dumps(recipe | {"past": 12}))
    words = ["forecast", "predict", "--model", str(run), "--output", str(tmp_path / "next.csv")]
    assert (
        "values has the shape [1, 12, 2], but the model's configuration expects [1, 24, 2]"
        in refusal(capsys, words)
    )


def test_help(capsys):
    for words in ([], ["train"], ["eval"], ["predict"], ["plot"]):
        with pytest.raises(SystemExit) as left:
            cli.main(["forecast", *words, "--help"])
        assert left.value.code == 0
        said = capsys.readouterr().out
        assert len(said.splitlines()) > 10 and "forecast" in said
