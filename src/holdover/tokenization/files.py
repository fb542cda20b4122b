"""Files in pieces: plain, .xz and .gz, and their checksums.

* Nothing here holds more than one piece of a file.
* A checksum is of the file as it lies on disk (what `sha256sum` prints), and is taken once a process.
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
# A NUL byte this near to the beginning marks a file that is no text.
INSPECTED = 1 << 16

_checksums: dict[tuple[str, int, int], str] = {}


def compression(path: Path) -> str:
    """'xz', 'gz' or '' by the end of the name."""
    suffix = path.suffix.lower().removeprefix(".")
    return suffix if suffix in {"xz", "gz"} else ""


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's uncompressed content; damage to the compression becomes one sentence."""
    opener = {"xz": lzma.open, "gz": gzip.open, "": open}[compression(path)]
    try:
        with opener(path, "rb") as file:
            yield file
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ValueError(
            f"{path.name} is not a whole .{compression(path)} file ({error}): fetch or compress it "
            "again."
        ) from error
    except PermissionError as error:
        raise PermissionError(
            f"{path} may not be read by you: change its permissions, or copy it."
        ) from error


def pieces(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The bytes start..stop of the uncompressed content."""
    with opened(path) as file:
        left = start
        while left > 0:
            # Not seek: that reads ahead in one go where the file is compressed.
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
    found = path.stat()
    key = (str(path.resolve()), found.st_size, found.st_mtime_ns)
    if key not in _checksums:
        with open(path, "rb") as file:
            _checksums[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _checksums[key]


def check_is_text(path: Path, name: str) -> None:
    """Refuse what is empty, or begins like something that no one would call a text."""
    with opened(path) as file:
        beginning = file.read(INSPECTED)
    if not beginning:
        raise ValueError(f"{name} is empty: a text to read is needed.")
    refuse_binary(beginning, name)


def refuse_binary(beginning: bytes, name: str) -> None:
    offset = beginning[:INSPECTED].find(b"\0")
    if offset >= 0:
        raise ValueError(
            f"{name} looks binary, not like text: byte {offset} is NUL; give a text file (train, eval "
            "and read can be told --errors replace, to read it as it is)."
        )
