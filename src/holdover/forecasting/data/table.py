"""A file of series as a value, and a CSV read into it.

* Wide: a column of times, and a column of numbers for each thing measured: one series.
* Long: unique_id, ds and y (and other columns of numbers): one series for each id, in the order of their
  first rows.
* Nothing is repaired. What is wrong is refused with the line and the column where it stands.

Whether the rows of a series follow each other at one frequency, and what is said where they do not.

* Unsorted times and mixed frequencies are always refused: no row would be the step after another.
* Gaps and repeated times are refused too, unless they are to be kept: then windows take the rows as they
  stand, as the papers do, and the record says so.
* A gap is one long step; steps of another length in a row are another frequency.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from .cells import Cells, counted, listed_lines, parse_numbers, parse_times, read_cells
from .frequency import FIXED, Frequency, infer_frequency
from .options import Irregular

TIME_COLUMNS = ("date", "ds", "time", "timestamp", "datetime")
ID = "unique_id"


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

    name: str  # without a path: records carry none of a machine
    sha256: str
    form: Literal["wide", "long"]
    columns: tuple[str, ...]
    series: tuple[Series, ...]
    frequency: Frequency
    notes: tuple[str, ...] = ()  # what a reader of results made from it must know
    target: str | None = None  # the column that is forecast where only one is
    split: str = "70/10/20"

    def __len__(self) -> int:
        return sum(map(len, self.series))


def read_table(
    path: Path,
    *,
    time_column: str | None = None,
    date_format: str | None = None,
    encoding: str = "utf-8",
    irregular: Irregular = "refuse",
) -> Table:
    """A CSV, plain, .xz or .gz."""
    name = path.name
    cells = read_cells(path, name, encoding)
    time_column = _time_column(cells, name, time_column)
    times, zone = parse_times(
        cells.columns[time_column], cells.lines, name, time_column, date_format
    )
    long = ID in cells.header
    columns = tuple(column for column in cells.header if column not in (time_column, ID))
    if not columns:
        raise ValueError(
            f"{name} has no column beside {time_column}{' and ' + ID if long else ''}: add one with the "
            "numbers to forecast."
        )
    values = np.stack(
        [parse_numbers(cells.columns[column], cells.lines, name, column) for column in columns],
        axis=1,
    )
    ids = [cell.strip() for cell in cells.columns[ID]] if long else None
    series = _by_id(ids, Series("", times, values, cells.lines), name)
    frequency, notes = _one_frequency(series, name, irregular)
    if zone:
        notes.append(f"{name}: times are in the zone {zone}, which was taken off")
    target = columns[0] if len(columns) == 1 else "y" if long and "y" in columns else None
    form = "long" if long else "wide"
    return Table(name, cells.sha256, form, columns, series, frequency, tuple(notes), target)


def _time_column(cells: Cells, name: str, wanted: str | None) -> str:
    header = ", ".join(cells.header)
    if wanted is not None:
        if wanted not in cells.header:
            raise ValueError(f"{name} has no column {wanted}: it has {header}; name one of them.")
        return wanted
    for column in cells.header:
        if column.lower() in TIME_COLUMNS:
            return column
    raise ValueError(
        f"{name} has no column of times: one called {', '.join(TIME_COLUMNS[:-1])} or "
        f"{TIME_COLUMNS[-1]} was expected among {header}; rename it, or say which it is (time_column)."
    )


def _by_id(ids: Sequence[str] | None, rows: Series, file: str) -> tuple[Series, ...]:
    if ids is None:
        return (rows,)
    missing = [line for line, name in zip(rows.lines.tolist(), ids, strict=True) if not name]
    if missing:
        raise ValueError(
            f"{file}, column {ID}: no id in {listed_lines(missing)}; say which series those rows are of."
        )
    of_id: dict[str, list[int]] = {}
    for row, name in enumerate(ids):
        of_id.setdefault(name, []).append(row)
    return tuple(
        Series(name, rows.times[places], rows.values[places], rows.lines[places])
        for name, places in of_id.items()
    )


def _one_frequency(
    series: Sequence[Series], name: str, irregular: Irregular
) -> tuple[Frequency, list[str]]:
    found: list[Frequency] = []
    notes: list[str] = []
    for one in series:
        called = f"{name}, series {one.id}" if len(series) > 1 else name
        frequency, kept = check_regular(one.times, one.lines, called, irregular)
        if found and frequency != found[0]:
            raise ValueError(
                f"{name}: mixed frequencies; the rows of series {series[0].id} are {found[0]} apart, "
                f"those of series {one.id} {frequency}: give each frequency a file of its own."
            )
        found.append(frequency)
        notes += kept
    return found[0], notes


# So many equal steps of another length in a row are no gaps any more.
OTHER_FREQUENCY = 3


def check_regular(
    times: np.ndarray, lines: np.ndarray, name: str, irregular: Irregular = "refuse"
) -> tuple[Frequency, list[str]]:
    """The frequency, and a note for everything irregular that was kept."""
    if len(np.unique(times)) < 2:
        raise ValueError(
            f"{name} has {counted(len(times), 'row')} at a single time, and no frequency can be "
            "inferred from that: at least two different times are needed."
        )
    _refuse_unsorted(times, lines, name)
    frequency = infer_frequency(times)
    steps = np.diff(frequency.positions(times))
    if irregular == "refuse":
        _refuse_repeated(times, lines, name)
    _refuse_mixed(steps, frequency, lines, name)
    gaps = np.flatnonzero(steps > frequency.step)
    if irregular == "refuse" and gaps.size:
        raise ValueError(_gap_sentence(steps, gaps, frequency, times, lines, name))
    notes = []
    if (steps == 0).any():
        repeated = lines[1:][steps == 0].tolist()
        notes.append(f"{name}: repeated times kept as they stand ({listed_lines(repeated)})")
    if gaps.size:
        missing = int((steps[gaps] // frequency.step - 1).sum())
        after = listed_lines(lines[gaps].tolist())
        notes.append(f"{name}: {counted(missing, 'missing row')} not filled in (after {after})")
    return frequency, notes


def _refuse_unsorted(times: np.ndarray, lines: np.ndarray, name: str) -> None:
    back = np.flatnonzero(np.diff(times) < np.timedelta64(0))
    if not back.size:
        return
    row = int(back[0]) + 1
    others = f", and {back.size - 1} more like it" if back.size > 1 else ""
    raise ValueError(
        f"{name}, line {lines[row]}: {shown_time(times[row])} stands behind "
        f"{shown_time(times[row - 1])} of line {lines[row - 1]}{others}; sort the rows by time."
    )


def _refuse_repeated(times: np.ndarray, lines: np.ndarray, name: str) -> None:
    same = np.flatnonzero(np.diff(times) == np.timedelta64(0)) + 1
    if not same.size:
        return
    row = int(same[0])
    others = f" (in all {listed_lines(lines[same].tolist())})" if same.size > 1 else ""
    raise ValueError(
        f"{name}, line {lines[row]}: the time {shown_time(times[row])} is there already, in line "
        f"{lines[row - 1]}{others}; remove one of them, name the series in a column unique_id, or say "
        "irregular=keep to read the rows as they stand."
    )


def _refuse_mixed(steps: np.ndarray, frequency: Frequency, lines: np.ndarray, name: str) -> None:
    other = (steps > 0) & (steps != frequency.step)
    uneven = np.flatnonzero(other & (steps % frequency.step != 0))
    run = _first_run(np.where(other, steps, 0), OTHER_FREQUENCY)
    row = min((int(found) for found in (*uneven[:1], run) if found is not None), default=None)
    if row is None:
        return
    raise ValueError(
        f"{name}: mixed frequencies; most rows are {frequency} apart, but lines {lines[row]} and "
        f"{lines[row + 1]} are {_length(int(steps[row]), frequency)} apart: bring the rows to one "
        "frequency (round the times, resample, or split the file)."
    )


def _first_run(steps: np.ndarray, length: int) -> int | None:
    """Where `length` equal steps other than 0 begin."""
    if len(steps) < length:
        return None
    runs = np.lib.stride_tricks.sliding_window_view(steps, length)
    found = np.flatnonzero((runs == runs[:, :1]).all(1) & (runs[:, 0] != 0))
    return int(found[0]) if found.size else None


def _gap_sentence(
    steps: np.ndarray,
    gaps: np.ndarray,
    frequency: Frequency,
    times: np.ndarray,
    lines: np.ndarray,
    name: str,
) -> str:
    missing = steps[gaps] // frequency.step - 1
    row = int(gaps[0])
    others = f", {int(missing.sum()):,} in {len(gaps)} gaps in all" if len(gaps) > 1 else ""
    return (
        f"{name}: between line {lines[row]} ({shown_time(times[row])}) and line {lines[row + 1]} "
        f"({shown_time(times[row + 1])}) {counted(int(missing[0]), 'row')} "
        f"{'is' if missing[0] == 1 else 'are'} missing where rows are {frequency} apart{others}; fill "
        "them in, or say irregular=keep to read the rows as they stand."
    )


def _length(step: int, frequency: Frequency) -> str:
    if frequency.unit not in FIXED:
        unit = "month" if frequency.unit == "year" else frequency.unit
        return counted(step, unit)
    unit = next(unit for unit, length in FIXED.items() if step % length == 0)
    return counted(step // FIXED[unit], unit)


def shown_time(time: np.datetime64) -> str:
    """To the second, or finer where it is."""
    whole = time.astype("datetime64[s]")
    return str(whole if whole == time else time).replace("T", " ")
