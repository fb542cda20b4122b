"""Named data sets: where they are searched, checksums, and the errors without them."""

import hashlib
import lzma
from dataclasses import replace

import pytest

from csvs import hourly, refused, values_of, wide
from holdover.forecasting.data import named
from holdover.forecasting.data.named import NAMED, open_series
from holdover.forecasting.data.options import SeriesOptions
from holdover.forecasting.data.prepare import prepare
from holdover.forecasting.data.windows import SplitRule


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data directory of the same layout with a small ETTh1."""
    monkeypatch.delenv("HOLDOVER_DATA", raising=False)
    folder = tmp_path / "data"
    (folder / "ett").mkdir(parents=True)
    path = wide(tmp_path / "x.csv", hourly(16_000), values_of(16_000, 2), ["HUFL", "OT"])
    content = path.read_bytes()
    (folder / "ett" / "ETTh1.csv.xz").write_bytes(lzma.compress(content, preset=0))
    known = replace(NAMED["ETTh1"], sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(named.NAMED, "ETTh1", known)
    return folder


def refusal(spec, **options):
    return refused(open_series, spec, **options)


def test_the_table():
    assert list(NAMED) == ["ETTh1", "ETTh2", "ETTm1", "ETTm2", "WTH", "weather"]
    for name, known in NAMED.items():
        assert len(known.sha256) == 64 and not known.path.startswith("/") and known.licence
        assert SplitRule.parse(known.split).months == name.startswith("ETT")
    assert len({known.sha256 for known in NAMED.values()}) == 6


def test_by_name(data, monkeypatch):
    table = open_series("ETTh1", data_dir=data)
    assert (table.name, table.target, table.split) == ("ETTh1", "OT", "12/4/4 months")
    assert "CC BY-ND 4.0" in table.notes[-1]
    prepared = prepare(table, SeriesOptions(past=48, ahead=24, features="S"))
    assert prepared.about["windows"] == {"train": 8569, "valid": 2857, "test": 2857}
    assert prepared.about["series"][0]["unused_rows"] == 1600
    assert prepared.recipe.outputs == ("OT",)
    monkeypatch.setenv("HOLDOVER_DATA", str(data))
    assert open_series("ETTh1").sha256 == table.sha256


def test_the_original_csv_does_as_well(data):
    packed = data / "ett" / "ETTh1.csv.xz"
    (data / "ett" / "ETTh1.csv").write_bytes(lzma.decompress(packed.read_bytes()))
    packed.unlink()
    assert open_series("ETTh1", data_dir=data).sha256 == NAMED["ETTh1"].sha256


def test_another_content_is_refused(data):
    path = data / "ett" / "ETTh1.csv.xz"
    path.write_bytes(lzma.compress(b"date,OT\n2020-01-01,1\n2020-01-02,2\n"))
    said = refusal("ETTh1", data_dir=data)
    assert str(path) in said and NAMED["ETTh1"].sha256 in said
    # By its own path it is read as it is.
    assert open_series(str(path)).split == "70/10/20"


def test_missing_files_are_named(data):
    assert "put ett/ETTh1.csv.xz (or ett/ETTh1.csv) into a folder" in refusal("ETTh1")
    said = refusal("weather", data_dir=data)
    assert (
        f"put weather/weather.csv.xz (or weather/weather.csv) into the data directory {data}"
        in said
    )


def test_names_that_are_none(data):
    said = refusal("etth1", data_dir=data)
    assert "neither a file nor a named data set" in said and "did you mean ETTh1?" in said
    assert "did you mean" not in refusal("", data_dir=data)
    assert "leave out --time-column" in refusal("ETTh1", data_dir=data, encoding="latin-1")
