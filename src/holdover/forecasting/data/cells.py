"""A CSV as text cells, and its columns as numbers and times.

* The checksum covers the uncompressed content: a packed copy has the same one as the original.
* Lines are numbered from 1, as in an editor. They are the index of every column, so that an error names
  the line of a cell. Rows without any content are skipped.
* Times that need no format: 2016-07-01 13:00:00 (also with T or /, with fractions, or only the first
  parts of it), 7/1/2016 13:00 and 1.7.2016 13:00, each also with AM or PM.
* 7/1/2016 may start with the month or with the day. All rows together decide. If both orders fit every
  row, the file is refused; there is no guess. With dots, the day comes first.
* A time zone (Z, +02:00) that all rows share is dropped, because time features describe the local clock.
  Rows in different zones are refused.
"""

import csv
import datetime
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ...tokenization.files import INSPECTED, pieces

# pandas is imported late, and has no types of its own.
Frame: TypeAlias = Any  # pandas.DataFrame
Column: TypeAlias = Any  # pandas.Series
# An error message lists this many lines and counts the others.
LISTED = 5
SHOWN = 30
SEPARATORS = ",;\t"
MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-", "nat"}
# All times have this type: microseconds without a zone.
TIME = "datetime64[us]"
CLOCK = (
    r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?"
    r" ?(?P<half>[AaPp][Mm])?)?(?P<zone>Z| ?[+-]\d\d:?\d\d)?$"
)
YEAR_FIRST = (
    r"^(?P<year>\d{4})(?:(?P<mark>[-/.])(?P<left>\d{1,2})(?:(?P=mark)(?P<right>\d{1,2}))?)?" + CLOCK
)
YEAR_LAST = r"^(?P<left>\d{1,2})(?P<mark>[-/.])(?P<right>\d{1,2})(?P=mark)(?P<year>\d{4})" + CLOCK


def import_pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError as error:
        raise ValueError(
            "Forecasting needs the package pandas, which is not installed: "
            "pip install 'holdover[forecast]'."
        ) from error


@dataclass(frozen=True)
class Cells:
    name: str  # of the file, without the folder
    sha256: str
    rows: Frame  # text; the index has the line on which each row ends


def read_cells(path: Path, encoding: str = "utf-8") -> Cells:
    name = path.name
    content = b"".join(pieces(path))
    text = io.StringIO(_decode(content, name, encoding), newline="")
    # The most frequent separator of the first line; a comma if it has none.
    separator = max(SEPARATORS, key=text.readline().count)
    text.seek(0)
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True)
    rows: dict[int, list[str]] = {}
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows[reader.line_num] = row
    except csv.Error as error:
        raise ValueError(
            f"{name}, line {reader.line_num}: this is not CSV ({error}); correct the line or its quotes."
        ) from error
    if not rows:
        raise ValueError(f"{name} is empty: a CSV with a header and rows was expected.")
    header_line = next(iter(rows))
    header = [cell.strip() for cell in rows.pop(header_line)]
    _check_header(header, name, header_line)
    if not rows:
        raise ValueError(f"{name} has a header and no rows: add the rows of the series.")
    wrong = [line for line, row in rows.items() if len(row) != len(header)]
    if wrong:
        others = f" ({listed_lines(wrong)} in all)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{name}, line {wrong[0]}: {len(rows[wrong[0]])} cells, but the header has {len(header)} "
            f"columns{others}; correct the row, or its quotes and separators."
        )
    frame = import_pandas().DataFrame(
        list(rows.values()), index=list(rows), columns=header, dtype=object
    )
    return Cells(name, hashlib.sha256(content).hexdigest(), frame)


def content_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for piece in pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def _decode(content: bytes, name: str, encoding: str) -> str:
    wide = encoding.lower().startswith(("utf-16", "utf16", "utf-32", "utf32"))
    if b"\0" in content[:INSPECTED] and not wide:
        raise ValueError(f"{name} looks binary, not like a CSV: save the table as a CSV in UTF-8.")
    try:
        # Some spreadsheets write a byte order mark before UTF-8; it is not part of the first name.
        return content.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name}, line {line}: byte {error.start} is not valid {encoding}; save the file as UTF-8, "
            "or name its encoding with --encoding (latin-1 reads any file)."
        ) from error
    except LookupError as error:
        raise ValueError(
            f"--encoding {encoding} is not an encoding that Python knows: give utf-8, latin-1 or "
            "another of its names."
        ) from error


def _check_header(header: Sequence[str], name: str, line: int) -> None:
    for number, column in enumerate(header, start=1):
        if not column:
            raise ValueError(
                f"{name}, line {line}: column {number} has no name; name it, or remove it (pandas "
                "writes such a column unless index=False is given)."
            )
        if column in header[: number - 1]:
            raise ValueError(
                f"{name}, line {line}: two columns are called {column}; rename or remove one of them."
            )


def parse_numbers(cells: Column, file: str) -> np.ndarray:  # [rows] float64
    try:
        values = cells.to_numpy(np.float64)
        if np.isfinite(values).all():
            return values
    except ValueError:
        pass
    missing = cells.str.strip().str.lower().isin(MISSING)
    wrong = cells[~missing & ~cells.map(_is_finite)]
    if len(wrong):
        others = f" (and {len(wrong) - 1} more cells of this column)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{file}, line {wrong.index[0]}, column {cells.name}: {shown_cell(wrong.iloc[0])} is not a "
            f"finite number{others}; correct it, write decimals with a point, or remove the column."
        )
    raise ValueError(
        f"{file}, column {cells.name}: no value in {listed_lines(cells.index[missing].tolist())}; a "
        "forecast needs every value, so fill them in or remove the column."
    )


def _is_finite(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False


def parse_times(
    cells: Column, file: str, date_format: str | None = None
) -> tuple[np.ndarray, str | None]:
    """Times [rows], and the zone that was dropped."""
    cells = cells.str.strip()
    missing = cells.str.lower().isin(MISSING)
    if missing.any():
        raise ValueError(
            f"{file}, column {cells.name}: no time in {listed_lines(cells.index[missing].tolist())}; "
            "fill it in or remove the row."
        )
    if date_format is not None:
        return _parse_by_format(cells, file, date_format)

    def check(valid: np.ndarray) -> None:
        if not valid.all():
            row = int(np.argmin(valid))
            raise ValueError(
                f"{file}, line {cells.index[row]}, column {cells.name}: {shown_cell(cells.iloc[row])} "
                "is not a time like 2016-07-01 13:00; correct it, or give the format with --date-format."
            )

    year_first = cells.iloc[:1].str.match(YEAR_FIRST).all()
    parts = cells.str.extract(YEAR_FIRST if year_first else YEAR_LAST)
    check(parts["year"].notna().to_numpy())
    zone = _one_zone(parts["zone"], file, cells.name)
    year, left, right = (_integers(parts[part], 1) for part in ("year", "left", "right"))
    if year_first:
        readings = [_days(year, left, right)]
    else:
        readings = [_days(year, right, left)]
        if parts["mark"].iloc[0] != ".":
            readings.append(_days(year, left, right))
    clocks, valid_clock = _clocks(parts)
    check(valid_clock)
    fitting = [days for days, valid in readings if valid.all()]
    if not fitting:
        # Name the row at which the better of both orders fails.
        check(max((valid for _, valid in readings), key=np.argmin))
    if len(fitting) == 2 and (fitting[0] != fitting[1]).any():
        raise ValueError(
            f"{file}, column {cells.name}: {shown_cell(cells.iloc[0])} may start with the month or the "
            "day, and all rows fit both: give the format with --date-format, as in '%m/%d/%Y %H:%M'."
        )
    return fitting[0].astype(TIME) + clocks, zone


def _parse_by_format(cells: Column, file: str, date_format: str) -> tuple[np.ndarray, str | None]:
    times = []
    for line, cell in cells.items():
        try:
            times.append(datetime.datetime.strptime(cell, date_format))
        except ValueError as error:
            raise ValueError(
                f"{file}, line {line}, column {cells.name}: {shown_cell(cell)} does not match "
                f"--date-format {date_format}; correct the cell or the format."
            ) from error
    names = [str(time.tzinfo) if time.tzinfo else "" for time in times]
    zones = import_pandas().Series(names, index=cells.index, dtype=object)
    zone = _one_zone(zones, file, cells.name)
    return np.array([time.replace(tzinfo=None) for time in times], dtype=TIME), zone


def _integers(part: Column, absent: int) -> np.ndarray:
    return part.fillna(str(absent)).to_numpy(np.int64)


def _days(
    year: np.ndarray, month: np.ndarray, day: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:  # [rows] dates, [rows] whether the calendar has that day
    months = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1)
    days = months.astype("datetime64[D]") + (day - 1)
    valid = (month >= 1) & (month <= 12) & (day >= 1) & (days.astype("datetime64[M]") == months)
    return days, valid


def _clocks(parts: Frame) -> tuple[np.ndarray, np.ndarray]:
    """Time since midnight, and whether a clock can show it."""
    hour, minute, second = (_integers(parts[part], 0) for part in ("hour", "minute", "second"))
    # ".5" is half a second. Digits below a microsecond are dropped.
    fraction = _integers(parts["fraction"].str[:6].str.ljust(6, "0"), 0)
    half = parts["half"].fillna("").str.lower().to_numpy()
    named = half != ""
    valid = (minute < 60) & (second < 60) & np.where(named, (hour >= 1) & (hour <= 12), hour < 24)
    hour = np.where(named, hour % 12 + 12 * (half == "pm"), hour)
    microseconds = ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction
    return microseconds.astype("timedelta64[us]"), valid


def _one_zone(zones: Column, file: str, column: Any) -> str | None:
    zones = zones.fillna("")
    first = zones.iloc[0]
    others = zones[zones != first]
    if len(others):
        raise ValueError(
            f"{file}, line {others.index[0]}, column {column}: the zone is "
            f"{others.iloc[0] or 'not given'}, but line {zones.index[0]} has {first or 'none'}; write "
            "all times in one zone."
        )
    return first.strip() or None


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


def shown_time(time: np.datetime64) -> str:
    """To the second, or finer if the time has fractions."""
    whole = time.astype("datetime64[s]")
    return str(whole if whole == time else time).replace("T", " ")


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
