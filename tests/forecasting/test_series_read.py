"""CSVs of series: both forms, times in many spellings, and the errors for bad files."""

import gzip
import lzma
import re
import sys

import numpy as np
import pytest

from csvs import hourly, refused, values_of, wide, written
from holdover.forecasting.data.named import open_series


def refusal(path, **options):
    sentence = refused(open_series, str(path), **options)
    assert path.name in sentence
    return sentence


def hours(*lines, header="date,a,b"):
    """Rows at consecutive hours; each line holds the cells after the time."""
    return [
        header,
        *(f"2020-01-01 {hour:02}:00:00,{line}" for hour, line in enumerate(lines)),
    ]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plant.csv"


# Files that are read.


def test_wide(path):
    times, values = hourly(10), values_of(10, 2)
    table = open_series(str(wide(path, times, values)))
    (series,) = table.series
    assert (table.name, table.form, table.columns) == ("plant.csv", "wide", ("c0", "c1"))
    assert series.id == "" and series.lines.tolist() == list(range(2, 12))
    assert (series.times == times).all() and series.times.dtype == "datetime64[us]"
    assert (series.values == values).all() and series.values.dtype == np.float64
    assert str(table.frequency) == "1 hour" and table.target is None and not table.notes


def test_long_with_interleaved_series_and_another_column(path):
    lines = ["unique_id,ds,y,price"]
    for hour in range(4):
        lines += [f"{name},2020-01-01 {hour:02}:00,{n}{hour},1.5" for n, name in enumerate("ba")]
    table = open_series(str(written(path, *lines)))
    assert table.form == "long" and table.columns == ("y", "price") and table.target == "y"
    assert [series.id for series in table.series] == ["b", "a"]
    assert table.series[1].values[:, 0].tolist() == [10, 11, 12, 13]
    assert table.series[1].lines.tolist() == [3, 5, 7, 9] and len(table) == 8


def test_packed_files_are_the_same_file(path, tmp_path):
    content = wide(path, hourly(5), values_of(5, 1)).read_bytes()
    (tmp_path / "plant.csv.xz").write_bytes(lzma.compress(content))
    (tmp_path / "plant.csv.gz").write_bytes(gzip.compress(content))
    tables = [open_series(str(found)) for found in sorted(tmp_path.iterdir())]
    assert len({table.sha256 for table in tables}) == 1
    assert all((table.series[0].values == tables[0].series[0].values).all() for table in tables)
    assert tables[0].target == "c0"


def test_numbers_are_read_to_the_last_bit(path):
    cells = ["5.827000141143799", "1e-300", " -0.1", "30.5310001373291", "7"]
    table = open_series(str(written(path, *hours(*cells, header="date,a"))))
    assert table.series[0].values[:, 0].tolist() == [float(cell) for cell in cells]


def test_separators_byte_order_mark_quotes_and_empty_lines(path):
    for separator in ",;\t":
        lines = [line.replace(",", separator) for line in hours("1,2", "3,4", '"5",6')]
        lines.insert(2, "")
        path.write_text("\ufeff" + "\r\n".join([*lines, "", ""]), encoding="utf-8", newline="")
        table = open_series(str(path))
        assert table.columns == ("a", "b") and table.series[0].values[2].tolist() == [5, 6]
        assert table.series[0].lines.tolist() == [2, 4, 5]


def test_an_encoding_is_said(path):
    path.write_bytes("date,T (°C)\n2020-01-01,1\n2020-01-02,2\n".encode("latin-1"))
    assert open_series(str(path), encoding="latin-1").columns == ("T (°C)",)
    said = refusal(path)
    assert "line 1: byte 8 is not valid utf-8" in said and "--encoding (latin-1 reads" in said
    with pytest.raises(ValueError, match="--encoding klingon is not an encoding"):
        open_series(str(path), encoding="klingon")
    path.write_bytes("date\tT (°C)\n2020-01-01\t1\n2020-01-02\t2\n".encode("utf-16"))
    assert open_series(str(path), encoding="utf-16").columns == ("T (°C)",)


@pytest.mark.parametrize(
    ("cells", "second"),
    [
        (["2016-07-01 00:00:00", "2016-07-01 01:00:00"], "2016-07-01T01"),
        (["2016-07-01T00:00", "2016-07-01T00:15"], "2016-07-01T00:15"),
        (["2016/7/1 0:00", "2016/7/1 1:00"], "2016-07-01T01"),
        (["12/30/2010 23:00", "12/31/2010 0:00"], "2010-12-31T00"),
        (["30/12/2010 23:00", "31/12/2010 0:00"], "2010-12-31T00"),
        (["1.2.2010 1:00", "1.2.2010 2:00"], "2010-02-01T02"),
        (["2016-07-01 11:00 AM", "2016-07-01 12:00 PM"], "2016-07-01T12"),
        (["2016-07-01 11:00 pm", "2016-07-02 12:00 am"], "2016-07-02T00"),
        (["2016-07-01 00:00:00.000", "2016-07-01 00:00:00.25"], "2016-07-01T00:00:00.250"),
        (["2016-07-01 00:00:00.000000000", "2016-07-01 00:00:01.000000000"], "2016-07-01T00:00:01"),
        (["2016-01", "2016-02"], "2016-02-01"),
        (["1999", "2000"], "2000-01-01"),
        (["2016-07-01", "2016-07-02"], "2016-07-02"),
    ],
)
def test_spellings_of_times(path, cells, second):
    table = open_series(str(written(path, "date,a", *(f"{cell},1" for cell in cells))))
    assert table.series[0].times[1] == np.datetime64(second)


def test_month_or_day_first_is_not_guessed(path):
    written(path, "date,a", "1/2/2010,1", "1/3/2010,2")
    assert "month or the day" in refusal(path)
    table = open_series(str(path), date_format="%d/%m/%Y")
    assert table.series[0].times[1] == np.datetime64("2010-03-01")
    assert "line 2, column date: '1/2/2010' does not match --date-format %Y;" in refusal(
        path, date_format="%Y"
    )
    # One row that can only be read one way decides for all.
    written(path, "date,a", *(f"1/{day}/2010,{day}" for day in range(1, 32)))
    assert str(open_series(str(path)).frequency) == "1 day"


def test_zones(path):
    written(path, "date,a", "2020-01-01T00:00:00Z,1", "2020-01-01T01:00:00Z,1")
    table = open_series(str(path))
    assert table.series[0].times[0] == np.datetime64("2020-01-01T00") and "zone Z" in table.notes[0]
    written(path, "date,a", "2020-01-01T00:00+01:00,1", "2020-01-01T01:00+02:00,1")
    assert "line 3, column date: the zone is +02:00, but line 2 has +01:00" in refusal(path)
    assert "line 3, column date: the zone is UTC+02:00" in refusal(
        path, date_format="%Y-%m-%dT%H:%M%z"
    )


def test_the_time_column_is_found_or_said(path):
    for name in ("date", "DS", "Time", "timestamp", "Datetime"):
        wide(path, hourly(3), values_of(3, 1), time_column=name)
        assert open_series(str(path)).columns == ("c0",)
    wide(path, hourly(3), values_of(3, 1), time_column="when")
    said = refusal(path)
    assert "no column of times" in said and "among when, c0" in said
    assert open_series(str(path), time_column="when").columns == ("c0",)
    assert "no column where, which --time-column names: give one of when, c0." in refusal(
        path, time_column="where"
    )


# Files that are refused.


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \n , \n"])
def test_empty(path, content):
    path.write_bytes(content)
    assert "is empty" in refusal(path)


def test_header_alone_and_times_alone(path):
    assert "a header and no rows" in refusal(written(path, "date,a"))
    assert "no column except date" in refusal(written(path, "date", "2020-01-01", "2020-01-02"))
    long = written(path, "unique_id,ds", "a,2020-01-01", "a,2020-01-02")
    assert "no column except ds and unique_id" in refusal(long)


def test_no_csv_at_all(path, tmp_path):
    path.write_bytes(b"PK\x03\x04\0\0")
    assert "looks binary" in refusal(path)
    packed = tmp_path / "torn.csv.xz"
    packed.write_bytes(lzma.compress(b"date,a\n" * 1000)[:-20])
    assert "not a complete .xz file" in refusal(packed)
    with pytest.raises(ValueError, match="is a folder"):
        open_series(str(tmp_path))


def test_names_of_columns(path):
    assert "line 1: column 1 has no name" in refusal(written(path, ",date,a", "0,2020-01-01,1"))
    assert "two columns are called a" in refusal(written(path, "date,a,a", "2020-01-01,1,1"))


def test_ragged_rows(path):
    said = refusal(written(path, *hours("1,2", "3", "4,5", "6,7,8")))
    assert "line 3: 2 cells, but the header has 3 columns (lines 3 and 5 in all)" in said


@pytest.mark.parametrize("cell", ["", "NaN", "nan", "NA", "null", "?", " "])
def test_missing_values(path, cell):
    said = refusal(written(path, *hours("1,2", f"1,{cell}", "1,2", f"1,{cell}")))
    assert "column b: no value in lines 3 and 5;" in said


def test_many_missing_values_are_counted(path):
    said = refusal(written(path, *hours(*["1,"] * 20)))
    assert "no value in lines 2, 3, 4, 5, 6 and 15 more;" in said


@pytest.mark.parametrize("cell", ["n.a.", "12kW", "inf", '"3,5"', "1e999"])
def test_cells_that_are_no_numbers(path, cell):
    said = refusal(written(path, *hours("1,2", f"1,{cell}", "1,2")))
    shown = cell.strip('"')
    assert f"line 3, column b: '{shown}' is not a finite number;" in said
    said = refusal(written(path, *hours("1,2", f"1,{cell}", f"1,{cell}", "1,")))
    assert "(and 1 more cells of this column)" in said


@pytest.mark.parametrize(
    "cell", ["yesterday", "2020-13-01 00:00", "2020-02-30", "2020-01-01 25:00", "12", "20200101"]
)
def test_cells_that_are_no_times(path, cell):
    said = refusal(written(path, "date,a", "2020-01-01 00:00,1", f"{cell},1"))
    assert f"line 3, column date: '{cell}' is not a time like" in said
    assert "column date: no time in line 3;" in refusal(
        written(path, "date,a", "2020-01-01,1", ",1")
    )


def test_unsorted_times(path):
    times = hourly(10)
    said = refusal(wide(path, times[[0, 1, 2, 5, 4, 3, 6, 7, 8, 9]], values_of(10, 1)))
    assert "line 6: 2020-01-01 04:00:00 is earlier than line 5, 2020-01-01 05:00:00, and" in said
    assert "1 more like it; sort the rows by time" in said
    # Keeping what is irregular does not make rows of the past the future.
    assert "sort the rows" in refusal(path, irregular="keep")


def test_repeated_times(path):
    times = hourly(10)[[0, 1, 1, 2, 3, 4, 5, 5, 6, 7]]
    said = refusal(wide(path, times, values_of(10, 1)))
    assert "line 4: line 3 has the same time, 2020-01-01 01:00:00 (" in said
    assert "(in all lines 4 and 9)" in said
    table = open_series(str(path), irregular="keep")
    assert len(table) == 10 and "lines 4 and 9" in table.notes[0]
    assert str(table.frequency) == "1 hour"


def test_gaps(path):
    times = np.delete(hourly(20), [3, 8, 9])
    said = refusal(wide(path, times, values_of(17, 1)))
    assert (
        "1 row is missing between line 4 (2020-01-01 02:00:00) and line 5 (2020-01-01 04:00:00),"
        in said
    )
    assert "3 in 2 gaps in all" in said
    table = open_series(str(path), irregular="keep")
    assert "3 missing rows not filled in (after lines 4 and 8)" in table.notes[0]


def test_mixed_frequencies(path):
    quarters = hourly(1, "2020-01-02T00") + np.arange(40) * np.timedelta64(900, "s")
    mixed = wide(path, np.concatenate([hourly(24), quarters]), values_of(64, 1))
    for irregular in ("refuse", "keep"):
        said = refusal(mixed, irregular=irregular)
        assert "mixed frequencies; most rows are 15 minutes apart" in said
        assert "lines 2 and 3 are 1 hour apart" in said
    uneven = hourly(10).copy()
    uneven[4] += np.timedelta64(7, "s")
    said = refusal(wide(path, uneven, values_of(10, 1)))
    assert "lines 5 and 6 are 3,607 seconds apart" in said


def test_mixed_frequencies_between_series(path):
    lines = [f"a,2020-01-01 0{hour}:00,1" for hour in range(4)]
    lines += [f"b,2020-01-0{day},1" for day in range(1, 5)]
    said = refusal(written(path, "unique_id,ds,y", *lines))
    assert "series a are 1 hour apart, those of series b 1 day" in said


def test_a_problem_of_one_series_names_it(path):
    lines = [f"a,2020-01-0{day},1" for day in range(1, 6)]
    lines += [f"b,2020-01-0{day},1" for day in (1, 2, 4, 5, 6)]
    said = refusal(written(path, "unique_id,ds,y", *lines))
    assert said.startswith("plant.csv, series b: 1 row is missing between line 8")
    alone = written(path, "unique_id,ds,y", *lines[:6])
    assert "series b has 1 row at a single time" in refusal(alone)
    nameless = written(path, "unique_id,ds,y", *lines[:5], ",2020-01-06,1")
    assert "column unique_id: no id in line 7;" in refusal(nameless)


def test_records_name_no_folder(path, tmp_path):
    wide(path, hourly(3), values_of(3, 1))
    assert not re.search(str(tmp_path), repr(open_series(str(path))))


def test_without_pandas(path, monkeypatch):
    wide(path, hourly(3), values_of(3, 1))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match=r"pip install 'holdover\[forecast\]'\.$"):
        open_series(str(path))
