"""A CSV as cells of text: encoding, separator, header, rows.

* The checksum is of the uncompressed content, so a file is the same file whether it is packed or not.
* Lines are counted as an editor counts them, from 1; the header is usually line 1.
* A row without any content is passed over, wherever it stands.
"""

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...tokenization.files import INSPECTED, pieces
from .sentences import listed_lines

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
