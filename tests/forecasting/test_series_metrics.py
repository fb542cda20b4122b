"""Errors of forecasts: sums divided once, both units, every window, blocks for pairing."""

import json

import numpy as np
import pytest
import torch

from csvs import hourly, refused, values_of, wide, written
from holdover.evaluation.intervals import Resampled
from holdover.forecasting.data.named import open_series
from holdover.forecasting.data.options import SeriesOptions
from holdover.forecasting.data.prepare import prepare
from holdover.forecasting.scoring import ForecastErrors


@pytest.fixture
def table(tmp_path):
    return open_series(str(wide(tmp_path / "plant.csv", hourly(400), values_of(400, 3))))


def cut(table, past=12, ahead=5, **options):
    return prepare(table, SeriesOptions(past=past, ahead=ahead, **options))


def repeated(batch, outputs):
    """A forecast that repeats the last value; the outputs are the last input columns."""
    last = batch.values[:, -1:, batch.values.shape[2] - outputs :]
    return last.expand(-1, batch.future.shape[1], -1)


def scored(prepared, size, forecast=repeated):
    errors = ForecastErrors(prepared.test, prepared.recipe)
    for batch in prepared.test.batches(size):
        errors.add(forecast(batch, len(prepared.recipe.outputs)), batch)
    return errors.result()


def plain(table, prepared):
    """The same errors from the file's own values, window by window."""
    values = table.series[0].values[:, [table.columns.index(c) for c in prepared.recipe.outputs]]
    past, ahead = prepared.recipe.past, prepared.recipe.ahead
    start, stop = prepared.about["series"][0]["parts"]["test"]["rows"]
    assert past <= start
    return np.array(
        [
            values[first - 1] - values[first : first + ahead]
            for first in range(start, stop - ahead + 1)
        ]
    )  # [windows, ahead, O]


@pytest.mark.parametrize("features", ["M", "S", "MS"])
def test_both_units(table, features):
    prepared = cut(table, features=features, target="c2")
    found = scored(prepared, 32)
    errors = plain(table, prepared)
    outputs = list(prepared.recipe.outputs)
    deviation = prepared.scaler.deviation[0, prepared.scaler.places(outputs)]
    for unit, wanted in (("original", errors), ("scaled", errors / deviation)):
        assert found[unit]["mse"] == pytest.approx((wanted**2).mean(), rel=1e-4)
        assert found[unit]["mae"] == pytest.approx(np.abs(wanted).mean(), rel=1e-4)
        for number, column in enumerate(outputs):
            mse = (wanted[..., number] ** 2).mean()
            assert found[unit]["by_column"][column]["mse"] == pytest.approx(mse, rel=1e-4)
        by_step = np.abs(wanted).mean((0, 2))
        assert found[unit]["by_step"]["mae"] == pytest.approx(by_step, rel=1e-4)
    assert found["windows"] == 76 and found["targets"] == 76 * 5 * len(outputs)
    json.dumps(found)


def test_batches_do_not_change_the_result(table):
    """A mean of the means of batches would change, because the last batch is short."""
    prepared = cut(table)
    results = [scored(prepared, size) for size in (1, 7, 75, 1000)]
    for result in results[1:]:
        assert result["scaled"]["mse"] == pytest.approx(results[0]["scaled"]["mse"], rel=1e-12)
        assert result["per_unit"]["squared"] == pytest.approx(
            results[0]["per_unit"]["squared"], rel=1e-12
        )


def test_a_perfect_forecast(table):
    found = scored(cut(table), 32, lambda batch, outputs: batch.future.clone())
    assert found["scaled"]["mse"] == 0 and found["original"]["mae"] == 0


def test_units_add_up_and_are_the_same_for_every_past(table):
    results = [scored(cut(table, past), 32) for past in (3, 48)]
    for result in results:
        # A season of 24 hours is longer than the forecast: 76 windows are 4 blocks.
        assert result["interval_over"] == "blocks of 24 windows" and result["units"] == 4
        per_unit = result["per_unit"]
        assert per_unit["targets"] == [24 * 15] * 3 + [4 * 15]
        mse = sum(per_unit["squared"]) / sum(per_unit["targets"])
        assert mse == pytest.approx(result["scaled"]["mse"], rel=1e-12)
    first, second = results
    assert first["per_unit"]["targets"] == second["per_unit"]["targets"]
    # The same forecasts: paired, they do not differ.
    difference = np.subtract(first["per_unit"]["squared"], second["per_unit"]["squared"])
    value, low, high = Resampled(np.arange(4)).interval(
        difference, np.array(first["per_unit"]["targets"]), transform=lambda mean: mean
    )
    assert abs(value) < 1e-9 and abs(low) < 1e-9 and abs(high) < 1e-9


def test_every_window_once(table):
    prepared = cut(table)
    errors = ForecastErrors(prepared.test, prepared.recipe)
    batches = list(prepared.test.batches(32))
    for batch in batches[:-1]:
        errors.add(batch.future, batch)
    said = refused(errors.result)
    assert "64 of 76 windows were scored" in said
    said = refused(errors.add, batches[0].future, batches[0])
    assert "scored twice" in said


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_forecasts_that_are_no_numbers(table, value):
    prepared = cut(table)
    errors = ForecastErrors(prepared.test, prepared.recipe)
    batch = next(prepared.test.batches(32, start=1))
    forecast = batch.future.clone()
    forecast[3, 2, 1] = float(value)
    said = refused(errors.add, forecast, batch)
    place = prepared.test[35].place
    line = f"(line {place.line}) is {value} for c1 at step 3"
    assert line in said and str(place.time)[:10] in said
    # Nothing of it was counted.
    errors.add(batch.future, batch)


def test_another_shape(table):
    prepared = cut(table, features="MS", target="c0")
    errors = ForecastErrors(prepared.test, prepared.recipe)
    batch = next(prepared.test.batches(8))
    said = refused(errors.add, torch.zeros(8, 5, 3), batch)
    assert "(8, 5, 3), but the future of the batch has (8, 5, 1)" in said


def long_file(path, names, rows=60):
    lines = ["unique_id,ds,y"]
    for number, name in enumerate(names):
        values = values_of(rows, 1, seed=number)[:, 0] * 10.0**number
        lines += [
            f"{name},{time},{value!r}"
            for time, value in zip(hourly(rows), values.tolist(), strict=True)
        ]
    return open_series(str(written(path, *lines)))


def test_each_series_has_its_own_unit(tmp_path):
    table = long_file(tmp_path / "panel.csv", ["a", "b"])
    found = scored(cut(table, 6, 2), 4)
    # Windows of 12 test rows each: blocks never reach from one series into the next.
    assert found["windows"] == 22 and found["per_unit"]["targets"] == [22, 22]
    wanted = []
    for series in table.series:
        values = series.values
        wanted += [values[first - 1] - values[first : first + 2] for first in range(48, 59)]
    assert found["original"]["mae"] == pytest.approx(np.abs(wanted).mean(), rel=1e-4)


def test_many_series_are_the_units(tmp_path):
    table = long_file(tmp_path / "panel.csv", [f"s{number}" for number in range(20)])
    found = scored(cut(table, 6, 2), 50)
    assert found["interval_over"] == "series" and found["units"] == 20
    assert found["per_unit"]["targets"] == [22] * 20
