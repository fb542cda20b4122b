"""Document: a text with a beginning and an end, read in pieces.

* Bytes, not characters: byte-level models read exactly what is in the file, and an error in the
  encoding can be reported where it is.
* A document is read once and in the order its source gives it (archives cannot be read twice).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Document:
    name: str
    read: Callable[[], Iterator[bytes]]
    # Character ranges [start, stop) whose tokens are predicted; None: all of them.
    scored: tuple[tuple[int, int], ...] | None = None


class Source(Protocol):
    """Where documents come from."""

    # Properties: sources may be frozen.
    @property
    def name(self) -> str:
        """What a record calls it; no machine path."""
        ...

    @property
    def split(self) -> str: ...

    @property
    def has_splits(self) -> bool:
        """False: it is one text for everything, the caller holds out a part of it."""
        ...

    def documents(self) -> Iterator[Document]: ...

    def fingerprint(self) -> str:
        """Of the content and of how it is cut into documents."""
        ...

    def size(self) -> int | None:
        """Bytes to read, for a progress bar; None where that is not known."""
        ...
