"""One stream of bytes cut into documents where a line matches.

* Documents share the stream: each is read before the next one is asked for, or skipped.
* White space before the first match belongs to the first document (WikiText begins with a blank
  line); other text before it is a document of its own.
* A line is matched by its first mebibyte, so that a text without line ends is not held in memory.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from ..tokenization.document import Document

LONGEST_MATCHED = 1 << 20
GATHERED = 1 << 18


def compile_pattern(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is not a regular expression ({error}): new_document takes one that the "
            "first line of every document matches, such as '^ = [^=]'."
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
    """(begins a line, bytes up to and with its end), very long lines in several parts."""
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
