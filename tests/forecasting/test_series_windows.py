"""Splits, scaling and windows: every row is forecast, nothing leaks, and batches are repeatable."""

import json

import numpy as np
import pytest
import torch

from csvs import hourly, refused, values_of, wide, written
from holdover.forecasting.data.frequency import Frequency
from holdover.forecasting.data.named import open_series
from holdover.forecasting.data.options import SeriesOptions
from holdover.forecasting.data.prepare import beyond, prepare
from holdover.forecasting.data.recipe import Recipe, Scaler
from holdover.forecasting.data.windows import Rows, RowSpan, SplitRule, Windows
from holdover.runs.settings import settings_of
from holdover.text.prefetch import prefetch

HOUR = Frequency(1, "hour")
ROWS = 200


@pytest.fixture
def table(tmp_path):
    return open_series(str(wide(tmp_path / "plant.csv", hourly(ROWS), values_of(ROWS, 3))))


@pytest.fixture
def panel(tmp_path):
    """Two series of different lengths, scales and beginnings."""
    lines = ["unique_id,ds,y"]
    for name, rows, scale in (("north", 120, 1.0), ("south", 90, 1000.0)):
        start = "2020-01-01T00" if name == "north" else "2021-06-01T05"
        values = values_of(rows, 1, seed=rows)[:, 0] * scale + 5 * scale
        times = hourly(rows, start)
        lines += [
            f"{name},{time},{value!r}" for time, value in zip(times, values.tolist(), strict=True)
        ]
    return open_series(str(written(tmp_path / "panel.csv", *lines)))


def cut(table, past=12, ahead=5, **options):
    return prepare(table, SeriesOptions(past=past, ahead=ahead, **options))


def refusal(table, **options):
    return refused(cut, table, **options)


# Splits.


def test_the_months_of_the_papers():
    rule = SplitRule.parse("12/4/4 months")
    for frequency, times in ((HOUR, 1), (Frequency(15, "minute"), 4)):
        spans = rule.spans(17420 * times, 96, frequency, "ETT")
        borders = [(span.start, span.stop, span.lead) for span in spans.values()]
        n = times
        assert borders == [
            (0, 8640 * n, 0),
            (8640 * n, 11520 * n, 96),
            (11520 * n, 14400 * n, 96),
        ]
    assert str(rule) == "12/4/4 months"


def test_shares():
    spans = SplitRule.parse("70/10/20").spans(35064, 96, HOUR, "WTH")
    assert [(span.start, span.stop) for span in spans.values()] == [
        (0, 24544),
        (24544, 28052),
        (28052, 35064),
    ]
    # 0.7 * 90 is 62.99999999999999.
    assert SplitRule.parse("70/10/20").spans(90, 1, HOUR, "x")["train"].stop == 63


@pytest.mark.parametrize("rows", [50, 99, 100, 101, 1234])
def test_the_parts_follow_each_other_without_gaps(rows):
    train, valid, test = SplitRule.parse("62.5/12.5/25").spans(rows, 3, HOUR, "x").values()
    assert train.start == 0 and test.stop == rows
    assert train.stop == valid.start and valid.stop == test.start


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("half", "has an unknown form"),
        ("70/30", "has an unknown form"),
        ("70/10/10", "does not add up to 100"),
        ("70/0/30", "leaves a part without rows"),
    ],
)
def test_rules_that_are_none(table, text, said):
    assert said in refusal(table, split=text)


def test_months_that_do_not_fit(table):
    said = refusal(table, split="12/4/4 months")
    assert "has 200 rows, but --split '12/4/4 months' needs 14,400 (720 a month)" in said
    with pytest.raises(ValueError, match="1 month apart, which does not divide the 30 days"):
        SplitRule.parse("12/4/4 months").spans(100, 4, Frequency(1, "month"), "x")


def test_too_few_rows(table, panel):
    said = refusal(table, past=130, ahead=11)
    assert (
        "train part has 140 rows, too few for one window of 141 (--past 130 + --ahead 11)" in said
    )
    said = refusal(table, past=12, ahead=21)
    assert "valid part has 20 rows, too few for one window of 21 (--ahead 21;" in said
    assert "panel.csv, series south: the valid part has 9 rows" in refusal(panel, ahead=10)
    assert cut(table, past=130, ahead=10).about["windows"] == {"train": 1, "valid": 11, "test": 31}


# Windows.


@pytest.mark.parametrize("past", [1, 2, 7, 24, 48])
@pytest.mark.parametrize("ahead", [1, 3, 19, 20])
def test_laws_of_windows(table, past, ahead):
    """For many lengths: all rows of a part are forecast, and no later row is read."""
    prepared = cut(table, past, ahead)
    series = table.series[0]
    scaled = prepared.scaler.scale(series.values).astype(np.float32)
    for part in ("train", "valid", "test"):
        windows = getattr(prepared, part)
        start, stop = prepared.about["series"][0]["parts"][part]["rows"]
        forecast, read = set(), set()
        for number in range(len(windows)):
            window = windows[number]
            first = window.place.row
            assert window.place.time == series.times[first]
            assert window.place.line == series.lines[first] == first + 2
            assert (window.values == scaled[first - past : first]).all()
            assert (window.future == scaled[first : first + ahead]).all()
            assert window.marks.shape == (past, 4) and window.future_marks.shape == (ahead, 4)
            read |= set(range(first - past, first))
            forecast |= set(range(first, first + ahead))
        # Validation and test forecast each of their rows, training all after its first `past`.
        assert forecast == set(range(start + (past if part == "train" else 0), stop))
        assert min(read) == (0 if part == "train" else start - past) and max(read) < stop - ahead


def test_every_window_is_counted(table):
    prepared = cut(table, 12, 5)
    assert [len(prepared.train), len(prepared.valid), len(prepared.test)] == [124, 16, 36]
    assert RowSpan(11520, 14400, lead=48).windows(48, 24) == 2857
    with pytest.raises(IndexError):
        prepared.test[36]
    assert prepared.test[-1].place == prepared.test[35].place


def test_batches_in_order_leave_nothing_out(table):
    test = cut(table).test
    batches = list(test.batches(10))
    assert [len(batch.values) for batch in batches] == [10, 10, 10, 6]
    assert test.count_batches(10) == 4
    assert np.concatenate([batch.numbers for batch in batches]).tolist() == list(range(36))
    batch = batches[3]
    assert batch.values.shape == (6, 12, 3) and batch.future.shape == (6, 5, 3)
    assert batch.values.dtype == batch.marks.dtype == torch.float32
    assert batch.scored == 6 * 5 * 3 and batch.tokens == 6 * 12
    assert (batch.values[2].numpy() == test[32].values).all()
    assert (batch.future_marks[2].numpy() == test[32].future_marks).all()


def test_shuffled_batches_are_a_permutation_and_come_again(table):
    train = cut(table).train
    orders = {(seed, epoch): train.order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)}
    for order in orders.values():
        assert sorted(order.tolist()) == list(range(len(train)))
    assert len({tuple(order) for order in orders.values()}) == 4
    whole = list(train.shuffled(16, seed=1, epoch=1))
    assert sum(len(batch.numbers) for batch in whole) == len(train)
    rest = list(cut(table).train.shuffled(16, seed=1, epoch=1, start=3))
    assert len(rest) == len(whole) - 3
    for ours, theirs in zip(rest, whole[3:], strict=True):
        assert (ours.numbers == theirs.numbers).all() and torch.equal(ours.values, theirs.values)


def test_batches_can_be_prefetched(table):
    test = cut(table).test
    found = list(prefetch(test.batches(10), torch.device("cpu")))
    assert all(
        torch.equal(ours.future, theirs.future)
        for ours, theirs in zip(found, test.batches(10), strict=True)
    )


def test_series_do_not_run_into_each_other(panel):
    prepared = cut(panel, past=8, ahead=4)
    for windows in (prepared.train, prepared.valid, prepared.test):
        assert len(windows) == sum(span.windows(8, 4) for span in windows.spans)
        (batch,) = windows.batches(1000)
        for number in range(len(windows)):
            window = windows[number]
            of = next(n for n, s in enumerate(panel.series) if s.id == window.place.series)
            series = panel.series[of]
            assert batch.series[number] == of
            rows = series.values[window.place.row - 8 : window.place.row + 4]
            scaled = prepared.scaler.scale(rows, of).astype(np.float32)
            assert (np.concatenate([window.values, window.future]) == scaled).all()
    assert {windows.place.series for windows in (prepared.test[0], prepared.test[-1])} == {
        "north",
        "south",
    }


def test_a_window_without_a_lead_begins_with_the_series():
    rows = Rows((), np.zeros((10, 1)), np.zeros((10, 1)), np.zeros((10, 1)))
    windows = Windows(rows, [RowSpan(0, 10)], 4, 3)
    assert windows.first_rows(np.arange(len(windows))).tolist() == [4, 5, 6, 7]


# Columns.


def test_features(table):
    multi, one, to_one = (cut(table, features=kind, target="c1") for kind in ("M", "S", "MS"))
    assert multi.recipe.inputs == multi.recipe.outputs == ("c0", "c1", "c2")
    assert one.recipe.inputs == one.recipe.outputs == ("c1",)
    assert to_one.recipe.inputs == ("c0", "c2", "c1") and to_one.recipe.outputs == ("c1",)
    assert (multi.test[3].future[:, 1:2] == one.test[3].future).all()
    assert (to_one.test[3].future == one.test[3].future).all()
    assert (to_one.test[3].values == multi.test[3].values[:, [0, 2, 1]]).all()


def test_targets(table, panel):
    assert "set --target to one of c0, c1, c2" in refusal(table, features="S")
    assert "has no column power to forecast: it has c0, c1, c2" in refusal(table, target="power")
    assert cut(panel, features="MS").recipe.outputs == ("y",)


@pytest.mark.parametrize("name", ["past", "ahead"])
def test_lengths_begin_at_one(name):
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1."):
        SeriesOptions(**{name: 0})


def test_the_settings_are_fields_of_a_command():
    found = settings_of(SeriesOptions)
    assert {"data", "past", "ahead", "features", "split", "irregular"} <= set(found)
    assert all(setting.help for setting in found.values())


# Scaling.


def test_the_scaler_knows_the_training_rows_alone(tmp_path):
    values = values_of(ROWS, 3)
    first = cut(open_series(str(wide(tmp_path / "a.csv", hourly(ROWS), values))))
    changed = values.copy()
    changed[140:] = 1e6 * values_of(ROWS - 140, 3, seed=1)
    second = cut(open_series(str(wide(tmp_path / "b.csv", hourly(ROWS), changed))))
    assert first.recipe.to_json() == second.recipe.to_json()
    for ours, theirs in zip(first.train.batches(64), second.train.batches(64), strict=True):
        assert torch.equal(ours.values, theirs.values) and torch.equal(ours.future, theirs.future)
    training = values[:140]
    assert np.allclose(first.scaler.mean[0], training.mean(0), rtol=1e-12)
    assert np.allclose(first.scaler.deviation[0], training.std(0), rtol=1e-12)


def test_scaled_and_back(panel):
    scaler = cut(panel).scaler
    for number, series in enumerate(panel.series):
        scaled = scaler.scale(series.values, number)
        back = scaler.restore(scaled, ["y"], number)
        assert np.abs(back - series.values).max() <= 4e-15 * np.abs(series.values).max()
        stop = len(series) * 7 // 10
        assert abs(scaled[:stop].mean()) < 1e-12 and abs(scaled[:stop].std() - 1) < 1e-12
    again = Scaler.from_json(json.loads(json.dumps(scaler.to_json())))
    assert (again.mean == scaler.mean).all() and (again.deviation == scaler.deviation).all()
    both = scaler.restore(np.ones((2, 3, 1)), ["y"], np.array([1, 0]))
    assert (both[0] == scaler.mean[1] + scaler.deviation[1]).all()
    assert (both[1] == scaler.mean[0] + scaler.deviation[0]).all()


def test_one_column_is_restored_by_its_own_numbers(table):
    """As for a forecast of one column from all."""
    scaler = cut(table).scaler
    values = table.series[0].values
    back = scaler.restore(scaler.scale(values)[:, [2]], ["c2"])
    assert np.allclose(back[:, 0], values[:, 2], rtol=1e-12)


def test_a_constant_column_is_divided_by_one(tmp_path):
    values = values_of(ROWS, 2)
    values[:140, 1] = 0.1
    prepared = cut(open_series(str(wide(tmp_path / "a.csv", hourly(ROWS), values))))
    assert prepared.scaler.deviation[0, 1] == 1.0 and prepared.scaler.mean[0, 1] == 0.1
    assert (prepared.train[0].values[:, 1] == 0).all()
    assert prepared.about["notes"] == ["constant in the training rows, divided by 1: c1"]


def test_values_too_large_to_square(tmp_path):
    values = values_of(ROWS, 2)
    values[3, 1] = 1e308
    table = open_series(str(wide(tmp_path / "a.csv", hourly(ROWS), values)))
    assert "The values of column c1 are too large" in refusal(table)


# Records, and files that come later.


def test_the_record_is_json_and_complete(table):
    about = json.loads(json.dumps(cut(table).about))
    assert about["sha256"] == table.sha256 and about["data"] == "plant.csv"
    assert about["rows"] == ROWS and about["split"] == "70/10/20" and about["season"] == 24
    assert about["time_features"][0] == "hour of day"
    assert about["windows"] == {"train": 124, "valid": 16, "test": 36}
    (series,) = about["series"]
    assert series["unused_rows"] == 0
    assert series["parts"]["valid"] == {
        "rows": [140, 160],
        "reads_from": 128,
        "times": ["2020-01-06 20:00:00", "2020-01-07 15:00:00"],
    }


def test_a_recipe_comes_back_from_its_record(table):
    recipe = cut(table, features="MS", target="c2").recipe
    again = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert again.to_json() == recipe.to_json() and again.frequency == recipe.frequency
    assert again.marks == 4


def test_beyond_the_end(table):
    recipe = cut(table, features="MS", target="c2").recipe
    ahead = beyond(table, recipe)
    assert ahead.values.shape == (1, 12, 3) and ahead.future_marks.shape == (1, 5, 4)
    last = table.series[0].times[-1]
    assert (ahead.times[0] == last + np.arange(1, 6) * np.timedelta64(3600, "s")).all()
    scaled = recipe.scaler.scale(table.series[0].values[-12:]).astype(np.float32)
    assert (ahead.values[0].numpy() == scaled).all()
    # A model that repeats the last value says it in real units.
    forecast = ahead.values[:, -1:, 2:].expand(1, 5, 1)
    assert np.allclose(ahead.in_units(forecast), table.series[0].values[-1, 2], rtol=1e-5)
    with pytest.raises(ValueError, match="shape"):
        ahead.in_units(forecast[:, :4])
    broken = forecast.clone()
    broken[0, 2] = float("nan")
    with pytest.raises(ValueError, match="c2 3 steps ahead is nan"):
        ahead.in_units(broken)


def test_beyond_the_end_of_several_series(panel):
    ahead = beyond(panel, cut(panel).recipe)
    assert ahead.ids == ("north", "south") and ahead.times.shape == (2, 5)
    assert str(ahead.times[1, 0]).startswith("2021-06-04T23")
    found = ahead.in_units(ahead.values[:, -1:].expand(2, 5, 1))
    assert np.allclose(found[1], panel.series[1].values[-1], rtol=1e-5)


def test_another_file_by_the_same_recipe(table, tmp_path):
    recipe = cut(table).recipe
    values = values_of(60, 3, seed=7)[:, [2, 0, 1]]
    other = open_series(
        str(wide(tmp_path / "new.csv", hourly(60, "2022-01-01"), values, ["c2", "c0", "c1"]))
    )
    ahead = beyond(other, recipe)
    expected = recipe.scaler.scale(values[-12:][:, [1, 2, 0]]).astype(np.float32)
    assert (ahead.values[0].numpy() == expected).all()
    prepared = prepare(other, SeriesOptions(past=99, ahead=99), recipe)
    assert prepared.recipe is recipe and prepared.test[0].values.shape == (12, 3)


def mismatch(table, recipe):
    return refused(beyond, table, recipe)


def test_files_that_do_not_fit_a_forecaster(table, panel, tmp_path):
    recipe = cut(table).recipe
    path = tmp_path / "new.csv"
    for columns in (["c0", "c1"], ["c0", "c1", "other"], ["c0", "c1", "c2", "more"]):
        values = values_of(60, len(columns))
        said = mismatch(open_series(str(wide(path, hourly(60), values, columns))), recipe)
        assert f"the file has {', '.join(columns)}, the forecaster reads c0, c1, c2" in said
    days = np.datetime64("2020-01-01", "s") + np.arange(60) * np.timedelta64(86400, "s")
    said = mismatch(open_series(str(wide(path, days, values_of(60, 3)))), recipe)
    assert "1 day apart, those the forecaster was trained on 1 hour" in said
    said = mismatch(open_series(str(wide(path, hourly(11), values_of(11, 3)))), recipe)
    assert "has 11 rows, but the forecaster reads 12" in said
    of_panel = cut(panel).recipe
    said = mismatch(open_series(str(wide(path, hourly(60), values_of(60, 1), ["y"]))), of_panel)
    assert "the series (without a name)" in said and "it knows north, south" in said


def test_one_column_alone_does_not_mind_others(table, tmp_path):
    recipe = cut(table, features="S", target="c1").recipe
    assert beyond(table, recipe).values.shape == (1, 12, 1)
