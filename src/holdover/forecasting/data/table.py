"""Series read from a CSV, and the check that their rows follow each other at one frequency.

* Wide: a column of times and one column of numbers per quantity. That is one series.
* Long: unique_id, ds and y (and further columns of numbers). That is one series per id, in the order of
  their first rows.
* Nothing is repaired. Errors name the line and the column.
* Unsorted times and mixed frequencies are always refused: the next row would not be the next step.
* Gaps and repeated times are refused as well, unless `irregular="keep"`. Then windows take the rows as
  they are, as the papers do, and the record notes it.
* A gap is a single long step. Several equal steps of another length are another frequency.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from .cells import (
    Column,
    counted,
    import_pandas,
    listed_lines,
    parse_numbers,
    parse_times,
    read_cells,
    shown_time,
)
from .frequency import FIXED, Frequency, infer_frequency
from .options import Irregular

TIME_COLUMNS = ("date", "ds", "time", "timestamp", "datetime")
ID = "unique_id"
# This many equal steps of another length in a row are another frequency, not gaps.
OTHER_FREQUENCY = 3


@dataclass(frozen=True)
class Series:
    id: str  # empty in a wide file
    times: np.ndarray  # [T] datetime64[us]
    values: np.ndarray  # [T, C] float64
    lines: np.ndarray  # [T] lines of the file

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True)
class Table:
    """Series of one frequency with the same columns."""

    name: str  # of the file, without the folder: records contain no paths of a machine
    sha256: str
    form: Literal["wide", "long"]
    columns: tuple[str, ...]
    series: tuple[Series, ...]
    frequency: Frequency
    notes: tuple[str, ...] = ()  # for readers of results on this data
    target: str | None = None  # the column to forecast if only one is wanted
    split: str = "70/10/20"

    def __len__(self) -> int:
        return sum(map(len, self.series))

    def name_of(self, series: Series) -> str:
        return f"{self.name}, series {series.id}" if series.id else self.name


def read_table(
    path: Path,
    *,
    time_column: str | None = None,
    date_format: str | None = None,
    encoding: str = "utf-8",
    irregular: Irregular = "refuse",
) -> Table:
    """A CSV, plain, .xz or .gz."""
    cells = read_cells(path, encoding)
    name, rows = cells.name, cells.rows
    time_column = _time_column(list(rows.columns), name, time_column)
    times, zone = parse_times(rows[time_column], name, date_format)
    long = ID in rows.columns
    columns = tuple(column for column in rows.columns if column not in (time_column, ID))
    if not columns:
        others = f"{time_column} and {ID}" if long else time_column
        raise ValueError(
            f"{name} has no column except {others}: add one with the numbers to forecast."
        )
    values = np.stack([parse_numbers(rows[column], name) for column in columns], axis=1)
    series = (Series("", times, values, rows.index.to_numpy()),)
    if long:
        series = _split_by_id(series[0], rows[ID].str.strip(), name)
    frequency, notes = _one_frequency(series, name, irregular)
    if zone:
        notes.append(f"{name}: times are in the zone {zone}, which was taken off")
    target = columns[0] if len(columns) == 1 else "y" if long and "y" in columns else None
    form = "long" if long else "wide"
    return Table(name, cells.sha256, form, columns, series, frequency, tuple(notes), target)


def _time_column(columns: Sequence[str], name: str, wanted: str | None) -> str:
    listed = ", ".join(columns)
    if wanted is not None:
        if wanted not in columns:
            raise ValueError(
                f"{name} has no column {wanted}, which --time-column names: give one of {listed}."
            )
        return wanted
    for column in columns:
        if column.lower() in TIME_COLUMNS:
            return column
    raise ValueError(
        f"{name} has no column of times: {', '.join(TIME_COLUMNS[:-1])} or {TIME_COLUMNS[-1]} was "
        f"expected among {listed}; rename the column, or name it with --time-column."
    )


def _split_by_id(rows: Series, ids: Column, file: str) -> tuple[Series, ...]:
    missing = ids.index[ids == ""].tolist()
    if missing:
        raise ValueError(
            f"{file}, column {ID}: no id in {listed_lines(missing)}; name the series of those rows."
        )
    places = import_pandas().Series(np.arange(len(ids)))
    return tuple(
        Series(name, rows.times[own], rows.values[own], rows.lines[own])
        for name, own in places.groupby(ids.to_numpy(), sort=False)
    )


def _one_frequency(
    series: Sequence[Series], file: str, irregular: Irregular
) -> tuple[Frequency, list[str]]:
    frequencies: list[Frequency] = []
    notes: list[str] = []
    for one in series:
        name = f"{file}, series {one.id}" if len(series) > 1 else file
        frequency, own_notes = check_regular(one, name, irregular)
        frequencies.append(frequency)
        notes += own_notes
        if frequency != frequencies[0]:
            raise ValueError(
                f"{file}: mixed frequencies; the rows of series {series[0].id} are {frequencies[0]} "
                f"apart, those of series {one.id} {frequency}: write a separate file per frequency."
            )
    return frequencies[0], notes


def check_regular(
    rows: Series, name: str, irregular: Irregular = "refuse"
) -> tuple[Frequency, list[str]]:
    """The frequency, and a note on each irregularity that was kept."""
    times, lines = rows.times, rows.lines
    if len(np.unique(times)) < 2:
        raise ValueError(
            f"{name} has {counted(len(times), 'row')} at a single time, which shows no frequency: at "
            "least two different times are needed."
        )
    between = np.diff(times)
    _refuse_unsorted(rows, np.flatnonzero(between < np.timedelta64(0)) + 1, name)
    frequency = infer_frequency(times)
    steps = np.diff(frequency.positions(times))
    repeated = np.flatnonzero(between == np.timedelta64(0)) + 1
    if irregular == "refuse":
        _refuse_repeated(rows, repeated, name)
    _refuse_mixed(rows, steps, frequency, name)
    gaps = np.flatnonzero(steps > frequency.step)
    missing = steps[gaps] // frequency.step - 1
    if irregular == "refuse":
        _refuse_gaps(rows, gaps, missing, frequency, name)
    notes = []
    if (steps == 0).any():
        kept = lines[1:][steps == 0].tolist()
        notes.append(f"{name}: repeated times kept as they stand ({listed_lines(kept)})")
    if gaps.size:
        after = listed_lines(lines[gaps].tolist())
        count = counted(int(missing.sum()), "missing row")
        notes.append(f"{name}: {count} not filled in (after {after})")
    return frequency, notes


def _refuse_unsorted(rows: Series, back: np.ndarray, name: str) -> None:
    if not back.size:
        return
    row = int(back[0])
    others = f", and {back.size - 1} more like it" if back.size > 1 else ""
    raise ValueError(
        f"{name}, line {rows.lines[row]}: {shown_time(rows.times[row])} is earlier than line "
        f"{rows.lines[row - 1]}, {shown_time(rows.times[row - 1])}{others}; sort the rows by time."
    )


def _refuse_repeated(rows: Series, repeated: np.ndarray, name: str) -> None:
    if not repeated.size:
        return
    row = int(repeated[0])
    listed = listed_lines(rows.lines[repeated].tolist())
    others = f" (in all {listed})" if repeated.size > 1 else ""
    raise ValueError(
        f"{name}, line {rows.lines[row]}: line {rows.lines[row - 1]} has the same time, "
        f"{shown_time(rows.times[row])}{others}; remove one of them, name the series in a column {ID}, "
        "or read the rows as they are with --irregular keep."
    )


def _refuse_mixed(rows: Series, steps: np.ndarray, frequency: Frequency, name: str) -> None:
    other = (steps > 0) & (steps != frequency.step)
    uneven = np.flatnonzero(other & (steps % frequency.step != 0))
    runs = _equal_runs(np.where(other, steps, 0), OTHER_FREQUENCY)
    first = [*uneven[:1].tolist(), *runs[:1].tolist()]
    if not first:
        return
    row = min(first)
    raise ValueError(
        f"{name}: mixed frequencies; most rows are {frequency} apart, but lines {rows.lines[row]} and "
        f"{rows.lines[row + 1]} are {_length(int(steps[row]), frequency)} apart: bring the rows to one "
        "frequency (round the times, resample, or split the file)."
    )


def _equal_runs(steps: np.ndarray, length: int) -> np.ndarray:
    """Where `length` equal steps other than 0 begin."""
    if len(steps) < length:
        return np.array([], dtype=np.int64)
    runs = np.lib.stride_tricks.sliding_window_view(steps, length)
    return np.flatnonzero((runs == runs[:, :1]).all(1) & (runs[:, 0] != 0))


def _refuse_gaps(
    rows: Series, gaps: np.ndarray, missing: np.ndarray, frequency: Frequency, name: str
) -> None:
    if not gaps.size:
        return
    row = int(gaps[0])
    before, after = (
        f"line {rows.lines[at]} ({shown_time(rows.times[at])})" for at in (row, row + 1)
    )
    verb = "is" if missing[0] == 1 else "are"
    others = f" ({int(missing.sum()):,} in {len(gaps)} gaps in all)" if len(gaps) > 1 else ""
    raise ValueError(
        f"{name}: {counted(int(missing[0]), 'row')} {verb} missing between {before} and {after}, where "
        f"rows are {frequency} apart{others}; fill them in, or read the rows as they are with "
        "--irregular keep."
    )


def _length(step: int, frequency: Frequency) -> str:
    if frequency.unit not in FIXED:
        unit = "month" if frequency.unit == "year" else frequency.unit
        return counted(step, unit)
    unit = next(unit for unit, length in FIXED.items() if step % length == 0)
    return counted(step // FIXED[unit], unit)
