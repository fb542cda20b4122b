"""JSONL: one document a line, with what of it is predicted.

* `scored` holds [start, stop) ranges of characters of the text; tokens outside are only read.
* One line is held in memory at a time.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..tokenization.document import Document
from ..tokenization.files import compression, opened, sha256


class JsonlSource:
    has_splits = False
    note = None

    def __init__(self, path: Path, text_field: str = "text") -> None:
        self.name = path.name
        self.split = "train"
        self._path = path
        self._text_field = text_field
        if next(self.documents(), None) is None:
            raise ValueError(f"{self.name} has no rows: one JSON object a line was expected.")

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
                f"{where} has no text in a field {self._text_field!r}: its fields are {fields}; say "
                "which of them holds the text (text_field)."
            )
        content = text.encode("utf-8", "surrogatepass")
        return Document(where, lambda: iter([content]), _ranges(row.get("scored"), text, where))


def _ranges(given: Any, text: str, where: str) -> tuple[tuple[int, int], ...] | None:
    if given is None:
        return None
    right = isinstance(given, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(edge) is int for edge in pair)
        and 0 <= pair[0] <= pair[1] <= len(text)
        for pair in given
    )
    if not right:
        raise ValueError(
            f"{where} has a malformed field 'scored': a list of [start, stop] character positions "
            f"with 0 <= start <= stop <= {len(text)} was expected, such as [[0, {len(text)}]]."
        )
    return tuple((start, stop) for start, stop in given)


def _short(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
