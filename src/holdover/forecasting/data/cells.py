"""Pieces of the sentences that refuse a file: which lines, which cell.

A CSV as cells of text: encoding, separator, header, rows.

* The checksum is of the uncompressed content, so a file is the same file whether it is packed or not.
* Lines are counted as an editor counts them, from 1; the header is usually line 1.
* A row without any content is passed over, wherever it stands.

Cells that should be numbers.

Cells that should be times.

* Understood without being told: 2016-07-01 13:00:00 (with T, /, fractions, or only its first parts),
  7/1/2016 13:00, 1.7.2016 13:00, each with AM or PM. Anything else needs a format of `strptime`.
* 7/1/2016 may begin with the month or the day. All rows together decide; where both readings fit them
  all, the file is refused rather than guessed at. With dots the day comes first.
* A zone (Z, +02:00) is taken off where all rows have the same one: the clock's reading is what the
  time features are about. Rows with different ones are refused.
"""

import csv
import datetime
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...tokenization.files import INSPECTED, pieces

# More lines than these are counted, not listed.
LISTED = 5
SHOWN = 30


def listed_lines(lines: Sequence[int]) -> str:
    """'line 7', 'lines 7 and 9', 'lines 7, 9, 12, 15, 20 and 31 more'."""
    if len(lines) == 1:
        return f"line {lines[0]}"
    shown = [str(line) for line in lines[:LISTED]]
    left = len(lines) - len(shown)
    last = f"{left} more" if left else shown.pop()
    return f"lines {', '.join(shown)} and {last}"


def shown_cell(cell: str) -> str:
    return repr(cell if len(cell) <= SHOWN else cell[:SHOWN] + "...")


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


SEPARATORS = ",;\t"


@dataclass(frozen=True)
class Cells:
    sha256: str
    header: tuple[str, ...]
    columns: Mapping[str, Sequence[str]]
    lines: np.ndarray  # [rows] where each row ends in the file


def read_cells(path: Path, name: str, encoding: str = "utf-8") -> Cells:
    content = b"".join(pieces(path))
    reader_lines = io.StringIO(_decoded(content, name, encoding), newline="")
    separator = _separator(reader_lines)
    reader = csv.reader(reader_lines, delimiter=separator, skipinitialspace=True)
    rows, lines = [], []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise ValueError(
            f"{name}, line {reader.line_num}: this is no CSV ({error}); correct the line or its quotes."
        ) from error
    if not rows:
        raise ValueError(f"{name} is empty: a header and rows of a CSV are needed.")
    header = tuple(cell.strip() for cell in rows.pop(0))
    header_line = lines.pop(0)
    _check_header(header, name, header_line)
    if not rows:
        raise ValueError(f"{name} has a header and no rows: add the rows of the series.")
    _check_widths(rows, lines, len(header), name)
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    return Cells(hashlib.sha256(content).hexdigest(), header, columns, np.array(lines))


def content_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for piece in pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _decoded(content: bytes, name: str, encoding: str) -> str:
    wide = encoding.lower().startswith(("utf-16", "utf16", "utf-32", "utf32"))
    if b"\0" in content[:INSPECTED] and not wide:
        raise ValueError(f"{name} looks binary, not like a CSV: save the table as a CSV in UTF-8.")
    try:
        # What some spreadsheets write in front of UTF-8 is no part of the first column's name.
        return content.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name}, line {line}: byte {error.start} is no {encoding}; save the file as UTF-8, or say "
            "in which encoding it is (encoding=latin-1 reads any file)."
        ) from error
    except LookupError as error:
        raise ValueError(
            f"encoding={encoding} is not known to Python: say utf-8, latin-1 or another of its names."
        ) from error


def _separator(content: io.StringIO) -> str:
    """The separator that stands most often in the first line; a comma where none does."""
    first = content.readline()
    content.seek(0)
    return max(SEPARATORS, key=first.count)


def _check_header(header: tuple[str, ...], name: str, line: int) -> None:
    for number, column in enumerate(header, start=1):
        if not column:
            raise ValueError(
                f"{name}, line {line}: column {number} has no name; name it, or remove it (pandas "
                "writes such a column unless told index=False)."
            )
        if column in header[: number - 1]:
            raise ValueError(
                f"{name}, line {line}: two columns are called {column}; rename or remove one of them."
            )


def _check_widths(rows: list[list[str]], lines: list[int], width: int, name: str) -> None:
    wrong = [number for number, row in enumerate(rows) if len(row) != width]
    if wrong:
        others = f" ({listed_lines([lines[n] for n in wrong])} in all)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{name}, line {lines[wrong[0]]}: {len(rows[wrong[0]])} cells where the header has {width} "
            f"columns{others}; correct the row, or its quotes and separators."
        )


MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-", "nat"}


def parse_numbers(
    cells: Sequence[str], lines: np.ndarray, name: str, column: str
) -> np.ndarray:  # [rows] float64
    try:
        values = np.array(cells, dtype=np.float64)
        if np.isfinite(values).all():
            return values
    except ValueError:
        pass
    raise ValueError(_sentence(cells, lines, name, column))


def _sentence(cells: Sequence[str], lines: np.ndarray, name: str, column: str) -> str:
    missing, wrong = [], []
    for line, cell in zip(lines.tolist(), cells, strict=True):
        if cell.strip().lower() in MISSING:
            missing.append(line)
        elif not _is_number(cell):
            wrong.append((line, cell))
    if wrong:
        line, cell = wrong[0]
        others = f" (and {len(wrong) - 1} more cells of this column)" if len(wrong) > 1 else ""
        return (
            f"{name}, line {line}, column {column}: {shown_cell(cell)} is not a finite number{others}; "
            "correct it, write decimals with a point, or remove the column."
        )
    return (
        f"{name}, column {column}: no value in {listed_lines(missing)}; a forecast needs every one, so "
        "fill them in or remove the column."
    )


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


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
