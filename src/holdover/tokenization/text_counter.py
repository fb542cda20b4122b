"""Bytes to characters in pieces, and what is counted of them on the way.

* Words are what white space separates, over the whole text: a word across a seam counts once.
* Counting never fails: where the bytes are no UTF-8 the replacement character is counted.
"""

import codecs
from collections.abc import Iterable, Iterator

# What is counted of a text. Lines are those the corpora's own word counts add as <eos>.
COUNTS = ("bytes", "characters", "words", "lines")


class TextCounter:
    """Counts a text that comes in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._inside_word = False
        self._counts: dict[str, int] = dict.fromkeys(COUNTS, 0)

    def add(self, piece: bytes, final: bool = False) -> None:
        self.add_characters(self._decoder.decode(piece, final), len(piece))

    def add_characters(self, text: str, size: int) -> None:
        """For a caller who has decoded the text anyway; size is what it took in bytes."""
        self._counts["bytes"] += size
        if not text:
            return
        self._counts["characters"] += len(text)
        self._counts["lines"] += text.count("\n")
        continued = self._inside_word and not text[0].isspace()
        self._counts["words"] += len(text.split()) - continued
        self._inside_word = not text[-1].isspace()

    def take(self) -> dict[str, int]:
        """What was counted since the last time: such parts add up to the whole."""
        taken = self._counts
        self._counts = dict.fromkeys(COUNTS, 0)
        return taken


def characters(name: str, pieces: Iterable[bytes], errors: str) -> Iterator[tuple[str, int]]:
    """(text, bytes read for it); with errors='strict' a wrong byte is refused and located."""
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
                f"({error.reason}); mend the text, or say --errors replace to go on with the "
                "replacement character in its place."
            ) from error
        read += len(piece)
        yield text, len(piece)


def and_an_end(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces, then one empty piece: nothing follows."""
    for piece in pieces:
        if piece:
            yield piece
    yield b""
