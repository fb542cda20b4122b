"""Bytes as symbols: all 256, or only those that occur in a corpus of the papers.

The papers count parameters with the smaller vocabularies, so a comparison with them needs the same one.
A byte outside the vocabulary is refused, not replaced.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..storage import write_atomically
from .document import Document, TextCounter, and_an_end

OWN_FILE = "holdover_tokenizer.json"
# ids, which of them are predicted (None: all), counts of their text.
Piece = tuple[np.ndarray, np.ndarray | None, dict[str, int]]


def _bytes_of(*ranges: tuple[int, int]) -> bytes:
    return bytes(value for first, last in ranges for value in range(first, last + 1))


ENWIK8 = _bytes_of((9, 10), (32, 126), (128, 191), (194, 220), (222, 222), (224, 237), (239, 240))
# Names for --tokenizer, and the bytes of each in the order of their ids.
SYMBOLS = {
    "bytes": _bytes_of((0, 255)),
    "enwik8": ENWIK8,
    # As Transformer-XL's preparation writes it, without line ends in text and vocabulary.
    "enwik8-204": ENWIK8.replace(b"\n", b""),
    "text8": b" abcdefghijklmnopqrstuvwxyz",
}
UNKNOWN = 0xFFFF


class ByteEncoder:
    """An id is the index of a byte among the symbols. With all 256 it is the byte itself."""

    bos: int | None = None

    def __init__(self, name: str = "bytes") -> None:
        self.name = name
        self.symbols = SYMBOLS[name]
        self.vocabulary = len(self.symbols)
        self._id_of = np.full(256, UNKNOWN, np.uint16)
        self._id_of[list(self.symbols)] = np.arange(self.vocabulary)

    def fingerprint(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()

    def encode_document(self, document: Document, errors: str = "strict") -> Iterator[Piece]:
        counter = TextCounter()
        position = 0  # of the next character
        for piece in and_an_end(document.read()):
            values = np.frombuffer(piece, dtype=np.uint8)
            counter.add(piece, final=not piece)
            scored = None
            if document.scored is not None:
                # A byte belongs to the character that it starts or continues.
                begun = position + np.cumsum((values & 0xC0) != 0x80)
                position = int(begun[-1]) if len(begun) else position
                scored = overlapping(begun - 1, begun, document.scored)
            yield self._ids(values, document.name), scored, counter.take()

    def _ids(self, values: np.ndarray, name: str) -> np.ndarray:
        ids = self._id_of[values]
        if (ids == UNKNOWN).any():
            value = int(values[ids == UNKNOWN][0])
            raise ValueError(
                f"{name} has the byte {value} ({bytes([value])!r}), which is not one of the "
                f"{self.vocabulary} symbols of the tokenizer {self.name}: use --tokenizer bytes."
            )
        return ids.astype(np.uint8)

    def decode(self, ids: Sequence[int]) -> bytes:
        return bytes(self.symbols[number] for number in ids)

    def token_texts(self) -> list[bytes]:
        return [bytes([value]) for value in self.symbols]

    def save(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_atomically(Path(folder) / OWN_FILE, json.dumps({"kind": self.name}).encode() + b"\n")

    def starts_word(self) -> np.ndarray:
        return np.array([text.isspace() for text in self.token_texts()])

    def ends_word(self) -> np.ndarray:
        return self.starts_word()

    def blank(self) -> np.ndarray:
        return self.starts_word()


def overlapping(
    starts: np.ndarray, stops: np.ndarray, ranges: Sequence[tuple[int, int]]
) -> np.ndarray:
    """[N] bool: start..stop shares a character with one of the ranges."""
    # A token without characters (a prefix) counts as part of the next character.
    stops = np.maximum(stops, starts + 1)
    shares = np.zeros(len(starts), dtype=bool)
    for start, stop in ranges:
        shares |= (starts < stop) & (stops > start)
    return shares
