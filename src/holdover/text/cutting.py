"""One file cut into documents: where a line matches a pattern, or one JSON object per line (JSONL).

* Documents share the stream: each is read before the next one is asked for, or skipped.
* White space before the first match belongs to the first document (WikiText begins with a blank
  line). Other text before it is a document of its own.
* Only the first mebibyte of a line is matched, so that a text without line ends is never held whole.
* In JSONL, `scored` holds [start, stop) ranges of characters. Tokens outside them are only read.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..tokenization.document import Document
from ..tokenization.files import compression, opened, sha256

LONGEST_MATCHED = 1 << 20
GATHERED = 1 << 18


def compile_pattern(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is not a regular expression ({error}): give --new-document one that matches "
            "the first line of every document, such as '^ = [^=]'."
        ) from error


def cut_documents(
    name: str, stream: Iterable[bytes], pattern: re.Pattern[str]
) -> Iterator[Document]:
    for number, lines in groupby(_numbered(stream, pattern), key=itemgetter(0)):
        texts = map(itemgetter(1), lines)
        yield Document(f"{name}#{number}", lambda texts=texts: gathered(texts))


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= GATHERED:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _numbered(stream: Iterable[bytes], pattern: re.Pattern[str]) -> Iterator[tuple[int, bytes]]:
    """Every piece of a line with the number of its document, from 1."""
    number, only_space = 1, True
    for begins_line, line in _lines(stream):
        if begins_line and pattern.search(line.rstrip(b"\r\n").decode("utf-8", "replace")):
            number += not only_space
            only_space = False
        only_space = only_space and not line.strip()
        yield number, line


def _lines(stream: Iterable[bytes]) -> Iterator[tuple[bool, bytes]]:
    """(begins a line, bytes up to and with its end); very long lines in several parts."""
    rest, begins = b"", True
    for piece in stream:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield begins, line + b"\n"
            begins = True
        if len(rest) >= LONGEST_MATCHED:
            yield begins, rest
            rest, begins = b"", False
    if rest:
        yield begins, rest


class JsonlSource:
    """One document per line. One line at a time is held in memory."""

    has_splits = False
    note = None

    def __init__(self, path: Path, text_field: str = "text") -> None:
        self.name = path.name
        self.split = "train"
        self._path = path
        self._text_field = text_field
        if next(self.documents(), None) is None:
            raise ValueError(f"{self.name} has no rows: give a file with one JSON object per line.")

    def documents(self) -> Iterator[Document]:
        with opened(self._path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield self._document(line, f"{self.name}, line {number}")

    def fingerprint(self) -> str:
        cut = ["jsonl", self._text_field, compression(self._path), sha256(self._path)]
        return hashlib.sha256(json.dumps(cut).encode()).hexdigest()

    def size(self) -> int | None:
        return None if compression(self._path) else self._path.stat().st_size

    def _document(self, line: bytes, where: str) -> Document:
        try:
            row = json.loads(line)
        # RecursionError: brackets a thousand deep.
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{where} is not JSON ({_short(error)}): every line must be one JSON object."
            ) from error
        if not isinstance(row, dict):
            raise ValueError(
                f"{where} holds a JSON {type(row).__name__}: every line must be one JSON object."
            )
        text = row.get(self._text_field)
        if not isinstance(text, str):
            fields = ", ".join(sorted(row)) or "none"
            raise ValueError(
                f"{where} has no text in a field {self._text_field!r}: its fields are {fields}; name "
                "the one that holds the text with --text-field."
            )
        content = text.encode("utf-8", "surrogatepass")
        return Document(where, lambda: iter([content]), _ranges(row.get("scored"), text, where))


def _ranges(given: Any, text: str, where: str) -> tuple[tuple[int, int], ...] | None:
    if given is None:
        return None
    valid = isinstance(given, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(edge) is int for edge in pair)
        and 0 <= pair[0] <= pair[1] <= len(text)
        for pair in given
    )
    if not valid:
        raise ValueError(
            f"{where} has a malformed field 'scored': give a list of [start, stop] character positions "
            f"with 0 <= start <= stop <= {len(text)}, such as [[0, {len(text)}]]."
        )
    return tuple((start, stop) for start, stop in given)


def _short(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
