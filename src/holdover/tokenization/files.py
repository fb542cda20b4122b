"""Files in pieces: plain, .xz and .gz, and their checksums.

* No function holds more than one piece of a file.
* A checksum is that of the file on disk (as `sha256sum` prints it). Each process computes it once.
"""

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PIECE = 1 << 20
# A NUL byte among the first INSPECTED bytes marks a file that is not text.
INSPECTED = 1 << 16

_checksums: dict[tuple[str, int, int], str] = {}


def compression(path: Path) -> str:
    """'xz', 'gz' or '', by the suffix of the name."""
    suffix = path.suffix.lower().removeprefix(".")
    return suffix if suffix in {"xz", "gz"} else ""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's uncompressed content. A damaged archive is refused in one sentence."""
    opener = {"xz": lzma.open, "gz": gzip.open, "": open}[compression(path)]
    try:
        with opener(path, "rb") as file:
            yield file
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(
            f"{path.name} is not a complete .{compression(path)} file ({error}): download or compress "
            "it again."
        ) from error
    except PermissionError as error:
        raise PermissionError(
            f"You may not read {path}: change its permissions, or copy it."
        ) from error


def pieces(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The bytes start..stop of the uncompressed content."""
    with opened(path) as file:
        left = start
        while left > 0:
            # Not seek, which would read a compressed file up to there in one piece.
            skipped = len(file.read(min(PIECE, left)))
            if not skipped:
                return
            left -= skipped
        position = start
        while stop is None or position < stop:
            piece = file.read(PIECE if stop is None else min(PIECE, stop - position))
            if not piece:
                return
            position += len(piece)
            yield piece


def sha256(path: Path) -> str:
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    if key not in _checksums:
        with open(path, "rb") as file:
            _checksums[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _checksums[key]


def check_is_text(path: Path, name: str) -> None:
    """Refuse a file that is empty or begins like a binary file."""
    with opened(path) as file:
        beginning = file.read(INSPECTED)
    if not beginning:
        raise ValueError(f"{name} is empty: give a file with text.")
    refuse_binary(beginning, name)


def refuse_binary(beginning: bytes, name: str) -> None:
    offset = beginning[:INSPECTED].find(b"\0")
    if offset >= 0:
        raise ValueError(
            f"{name} looks binary, not like text: byte {offset} is NUL; give a text file. holdover "
            "train, eval and read take --errors replace to read it as it is."
        )
