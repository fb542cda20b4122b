"""Evaluating forecasters: every window once, equal to a computation by hand, beside the naive ones."""

import json

import numpy as np
import pytest
import torch

from csvs import hourly, wide, written
from forecasts import AHEAD, COLUMNS, PAST, evaluate, mse_of, seasonal_values, train
from holdover.cli import entry as cli
from holdover.forecasting.data.metrics import ForecastErrors
from holdover.forecasting.folder import open_forecaster
from runs import flags_of, refusal


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained"), epochs=1)


def by_hand(run):
    """Scaled errors [windows, ahead, columns] of the test part, one window after the other."""
    cells = np.genfromtxt(run.parent / "power.csv", delimiter=",", skip_header=1)[:, 1:]
    rows = len(cells)
    train_rows, test_rows = int(rows * 0.7), int(rows * 0.2)
    mean, deviation = cells[:train_rows].mean(0), cells[:train_rows].std(0)
    scaled = (cells - mean) / deviation
    model = open_forecaster(run).model
    errors, repeated, before = [], [], []
    for first in range(rows - test_rows, rows - AHEAD + 1):
        past = torch.tensor(scaled[first - PAST : first][None], dtype=torch.float32)
        # DLinear reads no marks.
        marks = torch.zeros(1, PAST, 4), torch.zeros(1, AHEAD, 4)
        with torch.no_grad():
            forecast = model.forecast(past, *marks)[0].double().numpy()
        truth = scaled[first : first + AHEAD]
        errors.append(forecast - truth)
        repeated.append(scaled[first - 1] - truth)
        before.append(scaled[first - 24 : first - 24 + AHEAD] - truth)
    return np.stack(errors), np.stack(repeated), np.stack(before), deviation


@pytest.mark.parametrize("rows", [7, 1000])
def test_the_record_is_what_a_hand_computes(trained, rows):
    record = evaluate(trained, rows=rows)
    errors, repeated, before, deviation = by_hand(trained)
    assert [row["name"] for row in record["rows"]] == ["run", "repeat", "seasonal"]
    for row, wanted in zip(record["rows"], (errors, repeated, before), strict=True):
        assert row["windows"] == len(wanted) == 60 - AHEAD + 1
        assert row["targets"] == wanted.size == sum(row["per_unit"]["targets"])
        for unit, values in (("scaled", wanted), ("original", wanted * deviation)):
            found = row[unit]
            assert found["mse"] == pytest.approx((values**2).mean(), rel=1e-4)
            assert found["mae"] == pytest.approx(np.abs(values).mean(), rel=1e-4)
            assert found["by_step"]["mse"] == pytest.approx((values**2).mean((0, 2)), rel=1e-4)
            for number, column in enumerate(COLUMNS):
                mae = np.abs(values[..., number]).mean()
                assert found["by_column"][column]["mae"] == pytest.approx(mae, rel=1e-4)
    blocks = [(errors[first : first + 24] ** 2).sum() for first in range(0, len(errors), 24)]
    assert record["rows"][0]["per_unit"]["squared"] == pytest.approx(blocks, rel=1e-4)
    naive = (repeated**2).mean()
    difference = record["differences"][0]
    assert (difference["of"], difference["above"]) == ("run", "repeat")
    assert difference["mse"]["value"] == pytest.approx((errors**2).mean() - naive, rel=1e-3)
    assert difference["mse"]["low"] <= difference["mse"]["value"] <= difference["mse"]["high"]


def test_every_window_is_asked_for_once(trained, monkeypatch):
    asked = []
    add = ForecastErrors.add

    def noted(self, forecast, batch):
        asked.extend(batch.numbers.tolist())
        add(self, forecast, batch)

    monkeypatch.setattr(ForecastErrors, "add", noted)
    evaluate(trained, rows=8)
    assert asked == 3 * list(range(55))


def test_the_record_says_where_it_comes_from(trained):
    record = evaluate(trained, part="valid")
    assert record["record"] == "forecast evaluation" and record["data"]["part"] == "valid"
    assert record["data"]["data"] == "power.csv" and record["data"]["split"] == "70/10/20"
    assert record["model"]["training"]["sha256"] == record["data"]["sha256"]
    assert record["options"]["output"] == "run-eval" and record["provenance"]["versions"]
    row = record["rows"][0]
    assert row["windows"] == 30 - AHEAD + 1 and row["seconds"] > 0
    assert row["peak_memory"]["bytes"] > 0 and row["parameters"] == 2 * (24 * 6 + 6)
    # Nothing that a strict reader of JSON would stop at, and no place of this machine.
    assert str(trained.parent) not in json.dumps(record, allow_nan=False)
    noted = evaluate(trained, part="train")["notes"]
    assert noted == ["the forecaster was trained on these very windows"]
    noted = evaluate(trained, split="60/20/20")["notes"]
    assert "split 70/10/20: it may have seen rows" in noted[0]


def test_a_season_longer_than_the_past_is_repeated_all_the_same(tmp_path):
    run = train(tmp_path, past=6, epochs=1)
    record = evaluate(run)
    assert [row["past"] for row in record["rows"]] == [6, 6, 24]
    assert mse_of(record)["seasonal"] < mse_of(record)["repeat"]


def test_without_a_season_the_record_says_so(tmp_path):
    years = np.datetime64("1900", "Y") + np.arange(80)
    values = np.random.default_rng(0).normal(size=(80, 1))
    data = wide(tmp_path / "power.csv", years.astype("datetime64[D]"), values)
    run = train(tmp_path, data=data, past=4, ahead=2, epochs=1)
    record = evaluate(run)
    assert [row["name"] for row in record["rows"]] == ["run", "repeat"]
    assert "no season is known for rows 1 year apart" in record["notes"][-1]


def test_other_forecasters_on_the_same_windows(trained, capsys):
    folder = trained.parent
    lstm = train(folder, model="lstm", past=12, epochs=1, output=folder / "lstm")
    record = evaluate(trained, against=f"{lstm},{trained}")
    assert [row["name"] for row in record["rows"]] == [
        "run",
        "lstm",
        "run (2)",
        "repeat",
        "seasonal",
    ]
    assert record["rows"][1]["per_unit"]["targets"] == record["rows"][0]["per_unit"]["targets"]
    same = record["differences"][1]["mse"]
    assert same == {"value": 0.0, "low": 0.0, "high": 0.0}
    said = capsys.readouterr().out
    for word in ("forecaster", "lstm", "seasonal", "too few to say much"):
        assert word in said
    farther = train(folder, ahead=7, epochs=1, output=folder / "farther")
    given = {"model": trained, "against": farther, "output": folder / "none"}
    said = refusal(capsys, ["forecast", "eval", *flags_of(given)])
    assert "forecasts 7 rows of load, temperature and run 6" in said
    less = train(folder, split="60/20/20", epochs=1, output=folder / "less")
    said = refusal(capsys, ["forecast", "eval", *flags_of(given | {"against": less})])
    assert "scaled by different training rows" in said


def test_another_file_of_the_same_columns(trained, tmp_path):
    other = wide(
        tmp_path / "later.csv",
        hourly(300, "2021-01-01T00"),
        np.random.default_rng(1).normal(size=(300, 2)) * 20 + 100,
        # In another order: columns are found by their names.
        list(COLUMNS[::-1]),
    )
    record = evaluate(trained, data=other)
    assert record["data"]["data"] == "later.csv" and record["notes"] == []
    assert record["data"]["recipe"]["inputs"] == list(COLUMNS)


def test_plots(trained, tmp_path, capsys):
    evaluate(trained, plots=True)
    found = trained.parent / "run-eval"
    assert (found / "error_by_step.png").stat().st_size > 5000
    repeat = train(trained.parent, model="repeat", output=tmp_path / "repeat")
    output = tmp_path / "plots"
    words = ["forecast", "plot", str(found), str(trained), str(repeat), "--output", str(output)]
    assert cli.main([*words, "--window", "3", "--columns", "load"]) == 0
    assert sorted(path.name for path in output.iterdir()) == [
        "error_by_step.png",
        "error_by_step.svg",
        "training.png",
        "training.svg",
        "window.png",
        "window.svg",
    ]
    assert "--window 55 is not among the 55 of the test part" in refusal(
        capsys, [*words, "--window", "55"]
    )
    assert "wind is not forecast" in refusal(capsys, [*words, "--columns", "wind"])
    farther = train(trained.parent, ahead=7, epochs=1, output=tmp_path / "farther")
    said = refusal(capsys, ["forecast", "plot", str(trained), str(farther)])
    assert "does not forecast the same rows" in said
    said = refusal(capsys, ["plot", str(trained)])
    assert "is the run of a forecaster: draw it with holdover forecast plot" in said
    other = tmp_path / "other.json"
    other.write_text('{"record": "evaluation"}')
    assert "no record of holdover forecast eval" in refusal(
        capsys, ["forecast", "plot", str(other)]
    )


def test_validation_is_the_same_computation(trained):
    last = json.loads((trained / "log.jsonl").read_text().splitlines()[-1])
    record = evaluate(trained, part="valid")
    assert record["rows"][0]["scaled"]["mse"] == pytest.approx(last["valid_loss"], rel=1e-6)


def test_no_number_is_not_scored(tmp_path, capsys):
    run = train(tmp_path, epochs=1)
    model = open_forecaster(run).model
    model.trend.bias.data[0, 2] = torch.nan
    model.save_pretrained(run / "best")
    said = refusal(
        capsys, ["forecast", "eval", "--model", str(run), "--output", str(tmp_path / "e")]
    )
    assert "is nan for load at step 3: what is no number cannot be scored" in said
    said = refusal(
        capsys, ["forecast", "predict", "--model", str(run), "--output", str(tmp_path / "f.csv")]
    )
    assert "The forecast of load 3 steps ahead is nan, not a number" in said
    assert not (tmp_path / "f.csv").exists()


def test_several_series_each_in_its_own_scale(tmp_path):
    scales = {"north": 1.0, "south": 1000.0}
    lines = ["unique_id,ds,y"]
    for name, scale in scales.items():
        values = (seasonal_values(200)[:, 0] * scale).tolist()
        lines += [f"{name},{t},{v!r}" for t, v in zip(hourly(200), values, strict=True)]
    run = train(tmp_path, data=written(tmp_path / "power.csv", *lines), model="repeat")
    row = evaluate(run)["rows"][0]
    values = seasonal_values(200)[:, 0]
    errors = np.stack(
        [values[first - 1] - values[first : first + AHEAD] for first in range(160, 200 - AHEAD + 1)]
    )
    assert row["windows"] == 2 * len(errors)
    assert row["original"]["mae"] == pytest.approx(np.abs(errors).mean() * 1001 / 2, rel=1e-4)
    scaled = errors / values[:140].std()
    assert row["scaled"]["mse"] == pytest.approx((scaled**2).mean(), rel=1e-4)
