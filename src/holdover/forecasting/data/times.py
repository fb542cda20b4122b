"""Cells that should be times.

* Understood without being told: 2016-07-01 13:00:00 (with T, /, fractions, or only its first parts),
  7/1/2016 13:00, 1.7.2016 13:00, each with AM or PM. Anything else needs a format of `strptime`.
* 7/1/2016 may begin with the month or the day. All rows together decide; where both readings fit them
  all, the file is refused rather than guessed at. With dots the day comes first.
* A zone (Z, +02:00) is taken off where all rows have the same one: the clock's reading is what the
  time features are about. Rows with different ones are refused.
"""

import datetime
import re
from collections.abc import Sequence

import numpy as np

from .numbers import MISSING
from .sentences import listed_lines, shown_cell

# All times are of this kind: microseconds without a zone.
TIME = "datetime64[us]"
CLOCK = r"(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)? ?([AaPp][Mm])?)?(Z| ?[+-]\d\d:?\d\d)?"
YEAR_FIRST = re.compile(r"(\d{4})(?:([-/.])(\d{1,2})(?:\2(\d{1,2}))?)?" + CLOCK)
YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})" + CLOCK)
EXAMPLE = (
    "a time like 2016-07-01 13:00 was expected; correct it, or say how it is written (date_format)"
)


def parse_times(
    cells: Sequence[str],
    lines: np.ndarray,
    name: str,
    column: str,
    date_format: str | None = None,
) -> tuple[np.ndarray, str | None]:
    """Times [rows], and the zone that was taken off."""
    cells = [cell.strip() for cell in cells]
    missing = [line for line, cell in zip(lines.tolist(), cells, strict=True) if _missing(cell)]
    if missing:
        raise ValueError(
            f"{name}, column {column}: no time in {listed_lines(missing)}; fill it in or remove the row."
        )

    def refuse(row: int) -> ValueError:
        cell = shown_cell(cells[row])
        return ValueError(
            f"{name}, line {lines[row]}, column {column}: {cell} is no time: {EXAMPLE}."
        )

    if date_format is not None:
        return _by_format(cells, lines, name, column, date_format)
    pattern = YEAR_FIRST if YEAR_FIRST.fullmatch(cells[0]) else YEAR_LAST
    parts = []
    for row, cell in enumerate(cells):
        match = pattern.fullmatch(cell)
        if match is None:
            raise refuse(row)
        parts.append(match.groups())
    first, separator, second, third, *clock, zones = zip(*parts, strict=True)
    clocks, valid_clock = _clocks(clock)
    first, second, third = (_whole(part, 1) for part in (first, second, third))
    zone = _one_zone(zones, lines, name, column)
    if pattern is YEAR_FIRST:
        readings = [_days(first, second, third)]
    else:
        readings = [_days(third, second, first)]
        if separator[0] != ".":
            readings.append(_days(third, first, second))
    fitting = [days for days, valid in readings if valid.all()]
    if not valid_clock.all():
        raise refuse(int(np.argmin(valid_clock)))
    if not fitting:
        # The row that fails the reading which gets furthest.
        raise refuse(max(int(np.argmin(valid)) for _, valid in readings))
    if len(fitting) == 2 and (fitting[0] != fitting[1]).any():
        raise ValueError(
            f"{name}, column {column}: {shown_cell(cells[0])} may begin with the month or the day, and "
            "all rows fit both: say which with date_format, as in '%m/%d/%Y %H:%M'."
        )
    return fitting[0].astype(TIME) + clocks, zone


def _missing(cell: str) -> bool:
    return cell.lower() in MISSING


def _by_format(
    cells: Sequence[str], lines: np.ndarray, name: str, column: str, date_format: str
) -> tuple[np.ndarray, str | None]:
    times, zones = [], []
    for line, cell in zip(lines.tolist(), cells, strict=True):
        try:
            time = datetime.datetime.strptime(cell, date_format)
        except ValueError as error:
            raise ValueError(
                f"{name}, line {line}, column {column}: {shown_cell(cell)} is not written as "
                f"date_format={date_format} says; correct the cell or the format."
            ) from error
        times.append(time.replace(tzinfo=None))
        zones.append(str(time.tzinfo) if time.tzinfo else None)
    return np.array(times, dtype=TIME), _one_zone(zones, lines, name, column)


def _whole(parts: Sequence[str | None], absent: int) -> np.ndarray:
    return np.array([absent if part is None else int(part) for part in parts], dtype=np.int64)


def _days(
    year: np.ndarray, month: np.ndarray, day: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:  # [rows] dates, [rows] whether there is such a day
    months = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1)
    days = months.astype("datetime64[D]") + (day - 1)
    valid = (month >= 1) & (month <= 12) & (day >= 1) & (days.astype("datetime64[M]") == months)
    return days, valid


def _clocks(parts: Sequence[Sequence[str | None]]) -> tuple[np.ndarray, np.ndarray]:
    """Time since midnight, and whether a clock can show it."""
    hour, minute, second = (_whole(part, 0) for part in parts[:3])
    # .5 is half a second; what is finer than a microsecond is cut off.
    fraction = np.array([int((part or "")[:6].ljust(6, "0")) for part in parts[3]], dtype=np.int64)
    half = np.array([(part or "").lower() for part in parts[4]])
    named = half != ""
    valid = (minute < 60) & (second < 60) & np.where(named, (hour >= 1) & (hour <= 12), hour < 24)
    hour = np.where(named, hour % 12 + 12 * (half == "pm"), hour)
    microseconds = ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    return microseconds.astype("timedelta64[us]"), valid


def _one_zone(zones: Sequence[str | None], lines: np.ndarray, name: str, column: str) -> str | None:
    first = zones[0]
    for line, zone in zip(lines.tolist(), zones, strict=True):
        if zone != first:
            raise ValueError(
                f"{name}, line {line}, column {column}: the zone is {zone or 'not given'} where line "
                f"{lines[0]} has {first or 'none'}; write all times in one zone."
            )
    return first.strip() if first else None
