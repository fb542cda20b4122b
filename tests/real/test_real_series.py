"""The papers' data sets themselves: rows, splits, windows at every length of Informer's scripts.

Needs their files: HOLDOVER_DATA=FOLDER pytest tests/real/test_real_series.py
"""

import os
from functools import lru_cache

import numpy as np
import pytest

from holdover.forecasting.data.named import open_series
from holdover.forecasting.data.options import SeriesOptions
from holdover.forecasting.data.prepare import prepare
from holdover.forecasting.scoring import ForecastErrors

pytestmark = pytest.mark.skipif(
    not os.environ.get("HOLDOVER_DATA"), reason="HOLDOVER_DATA names no folder with the data sets"
)

opened = lru_cache(open_series)
# Name: rows, columns, frequency, rows of training, validation and test.
KNOWN = {
    "ETTh1": (17420, 7, "1 hour", (8640, 2880, 2880)),
    "ETTh2": (17420, 7, "1 hour", (8640, 2880, 2880)),
    "ETTm1": (69680, 7, "15 minutes", (34560, 11520, 11520)),
    "ETTm2": (69680, 7, "15 minutes", (34560, 11520, 11520)),
    "WTH": (35064, 12, "1 hour", (24544, 3508, 7012)),
    "weather": (52696, 21, "10 minutes", (36887, 5270, 10539)),
}
# Name: past and ahead, windows of training and test.
SCRIPTS = {
    "ETTh1": {
        (48, 24): (8569, 2857),
        (96, 48): (8497, 2833),
        (168, 168): (8305, 2713),
        (168, 336): (8137, 2545),
        (336, 720): (7585, 2161),
    },
    "ETTh2": {
        (48, 24): (8569, 2857),
        (96, 48): (8497, 2833),
        (336, 168): (8137, 2713),
        (336, 336): (7969, 2545),
        (720, 720): (7201, 2161),
    },
    "ETTm1": {
        (672, 24): (33865, 11497),
        (96, 48): (34417, 11473),
        (384, 96): (34081, 11425),
        (672, 288): (33601, 11233),
        (672, 672): (33217, 10849),
    },
    "WTH": {
        (168, 24): (24353, 6989),
        (96, 48): (24401, 6965),
        (336, 168): (24041, 6845),
        (720, 336): (23489, 6677),
        (720, 720): (23105, 6293),
    },
}
# Scaled errors of the last value, repeated for 96 rows.
REPEATED = [
    ("ETTh1", 1.294, 0.713),
    ("ETTh2", 0.432, 0.422),
    ("ETTm1", 1.214, 0.665),
    ("ETTm2", 0.266, 0.328),
    ("WTH", 0.868, 0.622),
    ("weather", 0.259, 0.254),
]
LENGTHS = [(name, *lengths) for name, found in SCRIPTS.items() for lengths in found]


@pytest.mark.parametrize("name", KNOWN)
def test_the_files(name):
    rows, columns, frequency, parts = KNOWN[name]
    table = opened(name)
    assert (len(table), len(table.columns), str(table.frequency)) == (rows, columns, frequency)
    about = prepare(table, SeriesOptions(past=96, ahead=24)).about
    spans = about["series"][0]["parts"].values()
    assert tuple(stop - start for start, stop in (span["rows"] for span in spans)) == parts
    assert table.target in table.columns


@pytest.mark.parametrize(("name", "past", "ahead"), LENGTHS)
def test_every_window_of_the_scripts(name, past, ahead):
    prepared = prepare(opened(name), SeriesOptions(past=past, ahead=ahead))
    assert (len(prepared.train), len(prepared.test)) == SCRIPTS[name][past, ahead]
    last = list(prepared.test.batches(32))[-1]
    assert last.numbers[-1] == len(prepared.test) - 1


@pytest.mark.parametrize(("name", "mse", "mae"), REPEATED)
def test_the_last_value_again_and_again(name, mse, mae):
    """A forecast without a model: what split, scale, windows and division make of it together."""
    prepared = prepare(opened(name), SeriesOptions(past=96, ahead=96))
    errors = ForecastErrors(prepared.test, prepared.recipe)
    for batch in prepared.test.batches(256):
        errors.add(batch.values[:, -1:].expand(-1, 96, -1), batch)
    found = errors.result()["scaled"]
    assert (round(found["mse"], 3), round(found["mae"], 3)) == (mse, mae)


def test_the_weather_is_read_as_it_stands():
    table = opened("weather")
    said = " ".join(table.notes)
    assert "repeated times kept as they stand (line 19046)" in said
    assert "9 missing rows not filled in (after line 21515)" in said
    # U+FFFD: so it was published.
    assert "SWDR (W/m\ufffd)" in table.columns


def test_the_scale_of_etth1():
    """The training rows have mean 0 and deviation 1; the first values are the file's own."""
    prepared = prepare(opened("ETTh1"), SeriesOptions(past=48, ahead=24))
    assert np.abs(prepared.train.rows.inputs[:8640].mean(0, dtype=np.float64)).max() < 1e-6
    assert np.abs(prepared.train.rows.inputs[:8640].std(0, dtype=np.float64) - 1).max() < 1e-6
    first = prepared.scaler.restore(prepared.train[0].values[0], prepared.recipe.outputs)
    assert first[-1] == pytest.approx(30.5310001373291, rel=1e-6)
