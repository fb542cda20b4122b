"""Tokens: the documents of a corpus as one stream of ids on disk, mapped into memory.

* Document d is ids[bounds[d] : bounds[d + 1]]. The counts of its text (bytes, words) are kept too.
* A part of a stream is a stream: a held-out end, the first tokens of every document.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from ..tokenization.document import COUNTS, Document, TextCounter
from ..windows import IGNORED

# Ids that are decoded at once to count a part of a document.
COUNTED = 1 << 18
# Tokens at a document's beginning that are decoded to count its first one.
HEAD = 16


class Encoder(Protocol):
    """Text to ids."""

    name: str
    vocabulary: int  # ids are 0 .. vocabulary - 1
    bos: int | None

    def fingerprint(self) -> str:
        """A checksum that changes whenever the same text could get other ids."""
        ...

    def encode_document(
        self, document: Document, errors: str = "strict"
    ) -> Iterator[tuple[np.ndarray, np.ndarray | None, dict[str, int]]]:
        """Pieces of (ids, which of them are predicted, counts of their text)."""
        ...

    def decode(self, ids: Sequence[int]) -> bytes: ...

    def token_texts(self) -> list[bytes]:
        """[V] the bytes of every id inside a text."""
        ...

    def save(self, folder: Any) -> None:
        """Write the files from which `open_encoder(folder)` makes this encoder again."""
        ...

    def starts_word(self) -> np.ndarray:
        """[V] bool: the id's text begins with white space, so a word begins in it."""
        ...

    def ends_word(self) -> np.ndarray:
        """[V] bool: the id's text ends with white space, so the next id begins a word."""
        ...

    def blank(self) -> np.ndarray:
        """[V] bool: the id's text is only white space."""
        ...


@dataclass(frozen=True)
class Tokens:
    ids: np.ndarray  # [N] unsigned integers, usually a memory map
    bounds: np.ndarray  # [D + 1]
    counts: dict[str, np.ndarray]  # each of COUNTS, [D]
    encoder: Encoder
    scored: np.ndarray | None = None  # [N] bool: this token is predicted; None: every one is
    about: dict[str, Any] = field(default_factory=dict)  # source, split, checksum, tokenizer

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def documents(self) -> int:
        return len(self.bounds) - 1

    def lengths(self) -> np.ndarray:
        return np.diff(self.bounds)

    def targets(self, start: int, stop: int) -> np.ndarray:
        """[stop - start] ids to predict, IGNORED for tokens that are only read."""
        ids = self.ids[start:stop].astype(np.int64)
        return ids if self.scored is None else np.where(self.scored[start:stop], ids, IGNORED)

    def count_targets(self, start: int, stop: int) -> int:
        """The number of `targets` that are predicted."""
        return stop - start if self.scored is None else int(self.scored[start:stop].sum())

    def predicted_counts(self) -> dict[str, np.ndarray]:
        """[D] counts of each document's predicted text: after a bos token all of it, otherwise all but
        the first token, which has nothing before it."""
        counts = {name: np.array(values) for name, values in self.counts.items()}
        if self.about.get("bos"):
            return counts
        for document, (start, stop) in enumerate(pairwise(self.bounds.tolist())):
            # Dropping the first token changes only the counts of the document's beginning.
            near = min(start + HEAD, stop)
            head, rest = self._count(start, near, start), self._count(start + 1, near, start)
            for name in COUNTS:
                counts[name][document] -= head[name] - rest[name]
        return counts

    def part(self, start: int, stop: int) -> "Tokens":
        """The stream from start to stop. Documents that cross start or stop are cut there."""
        first = int(np.searchsorted(self.bounds, start, side="right")) - 1
        last = int(np.searchsorted(self.bounds, stop, side="left"))
        bounds = np.clip(self.bounds[first : last + 1], start, stop)
        pieces = [(int(a), int(b)) for a, b in pairwise(bounds)]
        return self._pieces(pieces, range(first, last))

    def truncated(self, length: int) -> "Tokens":
        """The first `length` tokens of every document. This copies the ids, `part` does not."""
        pieces = [(int(a), min(int(b), int(a) + length)) for a, b in pairwise(self.bounds)]
        return self._pieces(pieces, range(self.documents))

    def _pieces(self, pieces: list[tuple[int, int]], documents: range) -> "Tokens":
        counts = {name: np.zeros(len(pieces), dtype=np.int64) for name in COUNTS}
        for number, ((start, stop), document) in enumerate(zip(pieces, documents, strict=True)):
            whole = (start, stop) == (self.bounds[document], self.bounds[document + 1])
            counted = {name: self.counts[name][document] for name in COUNTS}
            if not whole:
                counted = self._count(start, stop, int(self.bounds[document]))
            for name in COUNTS:
                counts[name][number] = counted[name]
        adjoining = all(a[1] == b[0] for a, b in pairwise(pieces))
        lengths = [stop - start for start, stop in pieces]
        if adjoining:
            taken = slice(pieces[0][0], pieces[-1][1]) if pieces else slice(0, 0)
            ids, scored = self.ids[taken], None if self.scored is None else self.scored[taken]
        else:
            ids = np.concatenate([self.ids[a:b] for a, b in pieces])
            scored = None
            if self.scored is not None:
                scored = np.concatenate([self.scored[a:b] for a, b in pieces])
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return replace(self, ids=ids, bounds=bounds, counts=counts, scored=scored)

    def _count(self, start: int, stop: int, document_start: int) -> dict[str, int]:
        """The counts of a part of a document."""
        if start == document_start and self.about.get("bos"):
            start += 1
        counter = TextCounter()
        for first in range(start, stop, COUNTED):
            # Some tokenizers drop white space at the start of the ids, so decode one id more.
            before = self.ids[max(first - 1, document_start) : first].tolist()
            ids = self.ids[first : min(first + COUNTED, stop)].tolist()
            text = self.encoder.decode(before + ids)
            counter.add(text[len(self.encoder.decode(before)) :])
        counter.add(b"", final=True)
        return counter.take()
