"""The header of a session file: what it says about the session, read without torch.

* A session file is a safetensors file with everything that is not a tensor in its header.
* One SHA-256 over all its bytes (with zeros in place of its own digits) detects every change.
* A file is untrusted: sizes are checked before memory is allocated. Nothing is ever executed.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..storage import SESSION, check_version
from .session_position import FileRead, Sampling, layout

FORMAT = "holdover.session"
VERSION = str(SESSION.version)
# In bytes: larger than any session with the state of a model that can write.
LARGEST = 1 << 28
LARGEST_HEADER = 1 << 23
BLANK = "0" * 64
# safetensors' names of number types, and torch's.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "U8": "uint8",
}
CARRY = "carry."
OPEN, UNREAD, RANDOM = "session.open", "session.unread", "session.random"
UNFINISHED = "session.unfinished"
LARGEST_NUMBER = 2**63 - 1
LONGEST = 200  # characters of a file's content that an error message repeats
REMEDY = "go back to a copy of it, or read the text into a new session"
LEAK = (
    "A saved state can leak the text it was made from: treat this file as you would treat the text."
)


@dataclass(frozen=True)
class SessionHeader:
    """The content of a session file; `read_header` has verified its checksum."""

    path: Path
    content: bytes
    """The whole file."""
    session: Mapping[str, Any]
    """Everything that is not a tensor."""
    tensors: Mapping[str, Any]
    """Type, shape and place of every tensor."""


def read_header(path: str | os.PathLike[str]) -> SessionHeader:
    """The header of a session file. Other files, and files changed later, are refused."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no session file at {path}.")
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, LARGEST_HEADER):
            raise damaged(path, f"its {size:,} bytes do not begin with the length of a header")
        raw = file.read(length)
        try:
            header = json.loads(raw)
            metadata = header.pop("__metadata__")
            name, version = metadata.get("format"), metadata.get("version")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(path, "its header cannot be read") from error
        if name != FORMAT:
            raise ValueError(
                f"{path} is a safetensors file but not a session: its header says {short(name)} where "
                f"{FORMAT!r} was expected; give a file that Session.save wrote."
            )
        if isinstance(version, str) and version.isdecimal() and int(version) > SESSION.version:
            check_version(SESSION, int(version), path)
        if version != VERSION:
            raise ValueError(
                f"{path} is a session of version {short(version)}, and this holdover reads version "
                f"{VERSION!r}: use the holdover that wrote it, or read the text into a new session."
            )
        expected = 8 + length + _bytes_of(path, header)
        if expected != size or size > LARGEST:
            raise damaged(path, f"it has {size:,} bytes where {expected:,} were expected")
        content = length.to_bytes(8, "little") + raw + file.read(size - 8 - length)
    digest, session = metadata.get("sha256"), metadata.get("session")
    if not isinstance(digest, str) or not isinstance(session, str):
        raise damaged(path, "its header is incomplete")
    blank = content.replace(digits(digest), digits(BLANK), 1)
    if len(digest) != len(BLANK) or hashlib.sha256(blank).hexdigest() != digest:
        raise ValueError(
            f"{path} was changed after it was saved: its SHA-256 is not the one in its header; {REMEDY}."
        )
    with damage_reported(path):
        return SessionHeader(path, content, _checked(session), header)


def _bytes_of(path: Path, entries: Mapping[str, Any]) -> int:
    """The number of bytes that the tensors take."""
    end = 0
    for name, entry in entries.items():
        try:
            dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        except (TypeError, KeyError, ValueError) as error:
            raise damaged(path, f"{short(name)} has no place in it") from error
        numbers = [start, stop, *(shape if isinstance(shape, list) else [None])]
        if not all(type(number) is int and 0 <= number <= LARGEST for number in numbers):
            raise damaged(path, f"{short(name)} has an impossible size")
        if dtype not in DTYPES or len(numbers) > 8:
            raise damaged(path, f"{short(name)} has a type that sessions do not use")
        end = max(end, stop)
    return end


def _checked(text: str) -> dict[str, Any]:
    """The description of the session in the header; a ValueError names the first error in it."""
    session = json.loads(text, parse_constant=_refuse)
    owner, files, sampling = session["owner"], session["files"], session["sampling"]
    check(
        all(str(word).isprintable() for pair in owner.items() for word in pair),
        "its model has no name",
    )
    window, overlap = owner["window"], owner["overlap"]
    check(_whole(window, 1) and _whole(overlap) and overlap < window, "its window has no size")
    check(_whole(session["position"]), "its position is not a number")
    names = [session["tokenizer_name"], session["model_name"]]
    names = [session["tokenizer"], *(name for name in names if name is not None)]
    check(isinstance(files, list), "its list of files is not a list")
    for file in (FileRead(**file) for file in files):
        numbers = _whole(file.size) and _whole(file.tokens) and _whole(file.bytes)
        check(numbers and type(file.finished) is bool, "the position in one of its files is wrong")
        names += [file.name, file.sha256]
    check(all(isinstance(s, str) and s.isprintable() for s in names), "a name in it is not text")
    for number in (sampling["temperature"], sampling["top_p"] or 0):
        check(
            type(number) in (int, float) and math.isfinite(number), "its sampling is not a number"
        )
    Sampling(**sampling)
    return session


def describe(header: SessionHeader) -> dict[str, Any]:
    """A session's content in words and numbers, without the model."""
    with damage_reported(header.path):
        return _describe(header)


def _describe(header: SessionHeader) -> dict[str, Any]:
    session, tensors = header.session, header.tensors
    owner, position, sampling = session["owner"], session["position"], session["sampling"]
    counts = {name: tensors[name]["shape"][0] for name in (OPEN, UNREAD, RANDOM, UNFINISHED)}
    return {
        "format": f"{FORMAT} {VERSION}",
        "size": len(header.content),
        "model": {
            "name": session["model_name"],
            "type": owner.get("model_type"),
            "weights": owner.get("weights"),
            "carry": owner.get("carry"),
            "window": owner["window"],
            "overlap": owner["overlap"],
        },
        "tokenizer": {
            "name": session["tokenizer_name"],
            "fingerprint": session["tokenizer"][:16],
        },
        "position": position,
        "windows": layout(position - counts[UNREAD], owner["window"], owner["overlap"])[0],
        "state": {
            name.removeprefix(
                CARRY
            ): f"{'x'.join(map(str, entry['shape']))} {DTYPES[entry['dtype']]}"
            for name, entry in sorted(tensors.items())
            if name.startswith(CARRY)
        },
        "open": {
            "tokens": counts[OPEN],
            "not_read_yet": counts[UNREAD],
            "bytes_of_a_character": counts[UNFINISHED],
        },
        "sampling": {name: sampling[name] for name in ("temperature", "top_k", "top_p")},
        "random": f"{counts[RANDOM]} bytes of torch's generator",
        "files": session["files"],
        "warning": LEAK,
    }


def lasting_name(name: str | None) -> str | None:
    """A name that works from any folder: folders become absolute paths, other names stay."""
    # Imported here, because it imports numpy.
    from ..tokenization.byte_encoder import SYMBOLS

    # As for the encoders: a word like bytes is a tokenizer even if a folder has that name.
    if name is None or name in SYMBOLS or not os.path.isdir(name):
        return name
    return os.path.abspath(name)


@contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Errors raised inside say that the file is damaged."""
    try:
        yield
    except KeyError as error:
        raise damaged(path, f"it has no {error}") from error
    except (
        *(ValueError, TypeError, AttributeError, IndexError),
        *(RecursionError, OverflowError),
    ) as error:
        reason = printable(" ".join(str(error).split()))[:LONGEST].rstrip(".")
        raise damaged(path, reason or type(error).__name__) from error


def check(right: bool, otherwise: str) -> None:
    if not right:
        raise ValueError(otherwise)


def _whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < LARGEST_NUMBER


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} is not a readable session file ({reason}): it is truncated, damaged or something "
        f"else; {REMEDY}."
    )


def digits(digest: str) -> bytes:
    """The digest as it is written in the header."""
    return f'"sha256":"{digest}"'.encode()


def short(value: Any) -> str:
    """The beginning of any value, for an error message."""
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."


def printable(text: str) -> str:
    """The text, with unprintable characters replaced: a terminal might act on them."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
