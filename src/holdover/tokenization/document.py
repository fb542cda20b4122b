"""Document: a text with a beginning and an end, read in pieces of bytes, and the counts of its text.

* Bytes, not characters: byte-level models read exactly the file, and an error can name its byte.
* A document is read once, in the order of its source: archives cannot be read twice.
* Words are separated by white space. A word across two pieces counts once.
* Counting never fails: for bytes that are not UTF-8 it counts the replacement character.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

# Lines are the ones to which the corpora's own word counts add an <eos>.
COUNTS = ("bytes", "characters", "words", "lines")


@dataclass(frozen=True)
class Document:
    name: str
    read: Callable[[], Iterator[bytes]]
    # Character ranges [start, stop) whose tokens are predicted; None: all of them.
    scored: tuple[tuple[int, int], ...] | None = None


class Source(Protocol):
    """A place that documents come from."""

    # Properties, because sources may be frozen.
    @property
    def name(self) -> str:
        """The name in records, without a machine's path."""
        ...

    @property
    def split(self) -> str: ...

    @property
    def has_splits(self) -> bool:
        """False: the source is one text, and the caller holds out a part of it."""
        ...

    def documents(self) -> Iterator[Document]: ...

    def fingerprint(self) -> str:
        """A checksum of the content and of the way it is cut into documents."""
        ...

    def size(self) -> int | None:
        """Bytes to read, for a progress bar; None if unknown."""
        ...


class TextCounter:
    """Counts a text that comes in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._inside_word = False
        self._counts: dict[str, int] = dict.fromkeys(COUNTS, 0)

    def add(self, piece: bytes, final: bool = False) -> None:
        self.add_characters(self._decoder.decode(piece, final), len(piece))

    def add_characters(self, text: str, size: int) -> None:
        """Count text that the caller has decoded; size is its length in bytes."""
        self._counts["bytes"] += size
        if not text:
            return
        self._counts["characters"] += len(text)
        self._counts["lines"] += text.count("\n")
        continued = self._inside_word and not text[0].isspace()
        self._counts["words"] += len(text.split()) - continued
        self._inside_word = not text[-1].isspace()

    def take(self) -> dict[str, int]:
        """The counts since the last call. They add up to those of the whole text."""
        taken = self._counts
        self._counts = dict.fromkeys(COUNTS, 0)
        return taken


def characters(name: str, pieces: Iterable[bytes], errors: str) -> Iterator[tuple[str, int]]:
    """(text, its length in bytes); with errors="strict" an invalid byte is refused and located."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    read = 0
    for piece in and_an_end(pieces):
        waiting = decoder.getstate()[0]
        try:
            text = decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            offset = read - len(waiting) + error.start
            raise ValueError(
                f"{name} is not valid UTF-8: byte {offset} is 0x{error.object[error.start]:02x} "
                f"({error.reason}); correct the text, or give --errors replace to read the "
                "replacement character in its place."
            ) from error
        read += len(piece)
        yield text, len(piece)


def and_an_end(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces that are not empty, then one empty piece that marks the end."""
    for piece in pieces:
        if piece:
            yield piece
    yield b""
