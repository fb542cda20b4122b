"""What comes behind a file's end: the right times, real units, the same in another process."""

import subprocess
import sys

import numpy as np
import pytest

from csvs import hourly, refused, wide, written
from forecasts import COLUMNS, seasonal_csv, seasonal_values, train
from holdover.cli import entry as cli
from holdover.forecasting.data.named import open_series
from holdover.forecasting.eval_options import PredictOptions
from holdover.forecasting.prediction import predict
from runs import flags_of, refusal


def words(model, **settings):
    return ["forecast", "predict", *flags_of({"model": model, "device": "cpu", **settings})]


def test_a_season_is_repeated_in_real_units_at_future_times(tmp_path):
    run = train(tmp_path, model="seasonal")
    output = tmp_path / "next.csv"
    assert cli.main(words(run, output=output)) == 0
    found = open_series(str(output))
    assert found.columns == COLUMNS and len(found) == 6
    (series,) = found.series
    # The file has 300 hours from 2020-01-01 on.
    assert (series.times == hourly(306)[300:]).all()
    assert series.values == pytest.approx(seasonal_values(300)[276:282], rel=1e-5)
    assert output.read_text().splitlines()[1].startswith("2020-01-13 12:00:00,")
    for kind in ("png", "svg"):
        assert (tmp_path / f"next.{kind}").stat().st_size > 5000


def test_a_longer_file_moves_the_forecast(tmp_path):
    run = train(tmp_path, model="repeat")
    longer = seasonal_csv(tmp_path / "longer.csv", rows=333)
    output = tmp_path / "next.csv"
    assert cli.main(words(run, data=longer, output=output, plot=False)) == 0
    (series,) = open_series(str(output)).series
    assert (series.times == hourly(339)[333:]).all()
    last = seasonal_values(333)[-1]
    assert series.values == pytest.approx(np.tile(last, (6, 1)), rel=1e-5)
    assert not (tmp_path / "next.png").exists()


def test_a_file_just_long_enough(tmp_path, capsys):
    run = train(tmp_path, model="repeat")
    short = seasonal_csv(tmp_path / "short.csv", rows=24)
    assert cli.main(words(run, data=short, output=tmp_path / "next.csv", plot=False)) == 0
    shorter = seasonal_csv(tmp_path / "shorter.csv", rows=23)
    said = refusal(capsys, words(run, data=shorter, output=tmp_path / "next.csv"))
    assert "shorter.csv has 23 rows where a forecast is made from past=24" in said


def test_several_series(tmp_path, capsys):
    lines = ["unique_id,ds,y"]
    for name, scale, start in (("north", 1.0, "2020-01-01T00"), ("south", 1000.0, "2020-02-01T05")):
        values = seasonal_values(200)[:, 0] * scale
        times = hourly(200, start)
        lines += [f"{name},{t},{v!r}" for t, v in zip(times, values.tolist(), strict=True)]
    data = written(tmp_path / "power.csv", *lines)
    run = train(tmp_path, data=data, model="seasonal")
    output = tmp_path / "next.csv"
    assert cli.main(words(run, output=output, series="south", history=48)) == 0
    assert output.read_text().splitlines()[0] == "unique_id,ds,y"
    found = open_series(str(output))
    assert [series.id for series in found.series] == ["north", "south"]
    for series, scale in zip(found.series, (1.0, 1000.0), strict=True):
        assert series.values[:, 0] == pytest.approx(
            seasonal_values(200)[176:182, 0] * scale, rel=1e-5
        )
    assert found.series[1].times[0] == hourly(201, "2020-02-01T05")[200]
    said = refusal(capsys, words(run, output=output, series="west"))
    assert "--series west is not in power.csv, which has north, south" in said


def test_the_same_in_another_process(tmp_path):
    shape = "d_model=16,n_heads=8,d_ff=16,rsa=true"
    run = train(tmp_path, model="informer", shape=shape, epochs=1)
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    assert cli.main(words(run, output=here, plot=False)) == 0
    call = [sys.executable, "-m", "holdover", *words(run, output=there, plot=False)]
    subprocess.run(call, check=True, capture_output=True, cwd=tmp_path)
    assert here.read_text() == there.read_text()


def test_in_python(tmp_path, capsys):
    run = train(tmp_path, model="repeat")
    found = predict(PredictOptions.of(model=str(run), output=tmp_path / "next.csv", plot=False))
    assert found.columns == COLUMNS and found.values.shape == (1, 6, 2) and found.ids == ("",)
    assert found.times[0, 0] == hourly(301)[300]


def test_a_folder_elsewhere_is_the_same_forecaster(tmp_path):
    run = train(tmp_path, epochs=1)
    (run / "best").resolve().rename(tmp_path / "moved")
    data = tmp_path / "power.csv"
    output = tmp_path / "next.csv"
    assert cli.main(words(tmp_path / "moved", data=data, output=output, plot=False)) == 0
    assert len(open_series(str(output))) == 6


def test_the_data_are_not_written_over(tmp_path, capsys):
    run = train(tmp_path, model="repeat")
    before = (tmp_path / "power.csv").read_text()
    said = refusal(capsys, words(run, output=tmp_path / "power.csv"))
    assert "is the data itself" in said and (tmp_path / "power.csv").read_text() == before
    assert "is a folder" in refusal(capsys, words(run, output=tmp_path))


def test_other_columns_are_refused_with_both_lists(tmp_path, capsys):
    run = train(tmp_path, epochs=1)
    other = wide(tmp_path / "other.csv", hourly(300), seasonal_values(300), ["load", "wind"])
    for verb in ("predict", "eval"):
        given = flags_of({"model": run, "data": other, "output": tmp_path / "out"})
        said = refusal(capsys, ["forecast", verb, *given])
        assert "The columns of other.csv do not match the forecaster's" in said
        assert "has load, wind, the forecaster reads load, temperature" in said


def test_other_steps_are_refused(tmp_path, capsys):
    run = train(tmp_path, epochs=1)
    times = np.datetime64("2020-01-01", "D") + np.arange(300)
    other = wide(tmp_path / "daily.csv", times, seasonal_values(300), list(COLUMNS))
    said = refusal(capsys, words(run, data=other, output=tmp_path / "next.csv"))
    assert "are 1 day apart, those the forecaster was trained on 1 hour" in said


def test_refusals_of_settings(tmp_path):
    assert "Say which model" in refused(PredictOptions.of, data="a.csv")
    assert "history=0 must be at least 1" in refused(PredictOptions.of, model="a", history=0)
