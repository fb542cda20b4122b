"""A file of series as a value, and a CSV read into it.

* Wide: a column of times, and a column of numbers for each thing measured: one series.
* Long: unique_id, ds and y (and other columns of numbers): one series for each id, in the order of their
  first rows.
* Nothing is repaired. What is wrong is refused with the line and the column where it stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from .cells import Cells, read_cells
from .frequency import Frequency
from .numbers import parse_numbers
from .regularity import Irregular, check_regular
from .sentences import listed_lines
from .times import parse_times

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
