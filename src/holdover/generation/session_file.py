"""The file of a session: safetensors, with everything else in its header.

* Never a key-value cache: the open window is kept as ids and read again. The file stays small.
* One SHA-256 over all its bytes (its own digits taken as zeros) notices every change.
* A file is material to judge: sizes are looked at before anything is made of them, and what a right
  hash says is still checked for what the session relies on. Nothing is executed, ever.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from ..state import NO_TOKEN, State
from ..storage import SESSION, check_version, write_atomically
from .session_position import FileRead, Sampling, SavedSession, SessionPosition, layout

FORMAT = "holdover.session"
VERSION = str(SESSION.version)
# More than any state of a model that can write; what is larger is something else.
LARGEST = 1 << 28
LARGEST_HEADER = 1 << 23
BLANK = "0" * 64
DTYPES = {"F64", "F32", "F16", "BF16", "I64", "I32", "U8"}
CARRY, TAIL = "carry.", "state.tail"
OPEN, UNREAD, RANDOM = "session.open", "session.unread", "session.random"
UNFINISHED = "session.unfinished"
OWN = {OPEN: torch.int32, UNREAD: torch.int32, RANDOM: torch.uint8, UNFINISHED: torch.uint8}
# The Mersenne twister inside torch's generator: where its counters stand, and what ends behind it.
LEFT, SEEDED, NEXT = slice(8, 12), slice(12, 16), slice(16, 24)
TWISTER, NUMBERS = 5016, 624
LONGEST = 200  # characters that are repeated of what a file says
OTHERWISE = "go back to a copy of it, or read the text into a new session"


def write_session(path: str | os.PathLike[str], saved: SavedSession) -> None:
    """Replace the file as a whole, or leave it as it was."""
    place = saved.place
    tensors = {OPEN: place.open, UNREAD: () if place.unread is None else (place.unread,)}
    own = {name: torch.tensor(ids, dtype=OWN[name]) for name, ids in tensors.items()}
    own |= {RANDOM: place.random, UNFINISHED: torch.tensor(list(place.unfinished)).to(torch.uint8)}
    if place.state is not None:
        own |= _tensors_of(place.state)
        if not _finite(own):
            raise ValueError(
                "The state is no longer made of numbers (the model overflowed), so the session was not "
                "saved: go back to its last file, or use the model in float32."
            )
    told = {
        "position": place.position,
        "sampling": asdict(place.sampling),
        "files": [asdict(file) for file in place.files],
        "owner": dict(saved.owner),
        "tokenizer": saved.tokenizer,
        "tokenizer_name": saved.tokenizer_name,
        "model_name": saved.model_name,
    }
    header = {"format": FORMAT, "version": VERSION, "sha256": BLANK, "session": json.dumps(told)}
    content = to_safetensors(own, metadata=header)
    digest = hashlib.sha256(content).hexdigest()
    write_atomically(Path(path), content.replace(_digits(BLANK), _digits(digest), 1))


def read_session(path: str | os.PathLike[str]) -> SavedSession:
    """What a file holds, all of it checked; the model and the tokenizer are not needed for that."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no session file at {path}.")
    content, told = _verified(path)
    try:
        tensors = from_safetensors(content)
        return _understood(tensors, told, len(content))
    except KeyError as error:
        raise _damaged(path, f"it has no {error}") from error
    except (SafetensorError, ValueError, TypeError, RecursionError, OverflowError) as error:
        reason = printable(" ".join(str(error).split()))[:LONGEST].rstrip(".")
        raise _damaged(path, reason or type(error).__name__) from error


def _verified(path: Path) -> tuple[bytes, str]:
    """All bytes and what the header tells, if this is a session and as it was written."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, LARGEST_HEADER):
            raise _damaged(path, f"its {size:,} bytes do not begin with the length of a header")
        raw = file.read(length)
        try:
            header = json.loads(raw)
            metadata = header.pop("__metadata__")
            name, version = metadata.get("format"), metadata.get("version")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _damaged(path, "its header cannot be read") from error
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
            raise _damaged(path, f"it has {size:,} bytes where {expected:,} were expected")
        content = length.to_bytes(8, "little") + raw + file.read(size - 8 - length)
    digest, told = metadata.get("sha256"), metadata.get("session")
    if not isinstance(digest, str) or not isinstance(told, str):
        raise _damaged(path, "its header is incomplete")
    digits = _digits(digest)
    blank = content.replace(digits, _digits(BLANK), 1)
    if len(digest) != len(BLANK) or hashlib.sha256(blank).hexdigest() != digest:
        raise ValueError(
            f"{path} was changed after it was saved: its SHA-256 is not the one in its header; "
            f"{OTHERWISE}."
        )
    return content, told


def _bytes_of(path: Path, entries: Mapping[str, Any]) -> int:
    """How many bytes the tensors take, before any is made."""
    end = 0
    for name, entry in entries.items():
        try:
            kind, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        except (TypeError, KeyError, ValueError) as error:
            raise _damaged(path, f"{short(name)} has no place in it") from error
        numbers = [start, stop, *(shape if isinstance(shape, list) else [None])]
        if not all(type(number) is int and 0 <= number <= LARGEST for number in numbers):
            raise _damaged(path, f"{short(name)} has an impossible size")
        if kind not in DTYPES or len(numbers) > 8:
            raise _damaged(path, f"{short(name)} is of a kind that no session has")
        end = max(end, stop)
    return end


def _understood(tensors: dict[str, Tensor], told: str, size: int) -> SavedSession:
    """Everything that a session relies on is so, or a ValueError says what is not."""
    found = json.loads(told, parse_constant=_refuse)
    own = {name: tensors.pop(name) for name in OWN}
    for name, dtype in OWN.items():
        _check(own[name].dtype == dtype and own[name].ndim == 1, f"{name} is no row of {dtype}")
    owner, files = found["owner"], found["files"]
    window, overlap = owner["window"], owner["overlap"]
    _check(
        all(str(word).isprintable() for pair in owner.items() for word in pair),
        "its model has no name",
    )
    _check(_whole(window, 1) and _whole(overlap) and overlap < window, "its window has no size")
    position, ids, unread = found["position"], own[OPEN].tolist(), own[UNREAD].tolist()
    _check(_whole(position) and len(unread) <= min(1, position), "its position is no number")
    windows, held = layout(position - len(unread), window, overlap)
    _check(len(ids) == held, f"{held} tokens belong into its open window and {len(ids)} are there")
    _check(min(ids + unread, default=0) >= 0, "ids of its tokens are negative")
    unfinished = bytes(own[UNFINISHED].tolist())
    _check(not unfinished or _begins_character(unfinished), "its last character is none")
    strings = [found["tokenizer_name"], found["model_name"]]
    strings = [found["tokenizer"], *(text for text in strings if text is not None)]
    _check(isinstance(files, list), "its list of files is none")
    read = tuple(FileRead(**file) for file in files)
    for file in read:
        numbers = _whole(file.size) and _whole(file.tokens) and _whole(file.bytes)
        _check(numbers and type(file.finished) is bool, "a file that it read has no place")
        strings += [file.name, file.sha256]
    _check(all(isinstance(s, str) and s.isprintable() for s in strings), "a name in it is none")
    sampling = found["sampling"]
    for number in (sampling["temperature"], sampling["top_p"] or 0):
        _check(type(number) in (int, float) and math.isfinite(number), "its sampling is no number")
    place = SessionPosition(
        random=_random_state(own[RANDOM]),
        sampling=Sampling(**sampling),
        state=_state(tensors, owner, windows, overlap),
        open=tuple(ids),
        unread=unread[0] if unread else None,
        position=position,
        unfinished=unfinished,
        files=read,
    )
    names = found["tokenizer_name"], found["model_name"]
    return SavedSession(place, owner, found["tokenizer"], *names, size)


def _state(
    tensors: dict[str, Tensor], owner: Mapping[str, Any], windows: int, overlap: int
) -> State | None:
    if windows <= 1:
        _check(not tensors, "it carries a state into its first window")
        return None
    tail = tensors.pop(TAIL, None)
    _check((tail is not None) == (overlap > 0), "the tokens of its overlap are not as many")
    if tail is not None:
        fits = tail.dtype == torch.long and tuple(tail.shape) == (1, overlap)
        # A window is closed when it is full: its last tokens are all there.
        _check(fits and bool((tail > NO_TOKEN).all()), "the tokens of its overlap are none")
    named = {name.removeprefix(CARRY): tensor for name, tensor in tensors.items()}
    known = all(
        name.startswith(CARRY) and t.ndim and t.shape[0] == 1 for name, t in tensors.items()
    )
    _check(bool(named) and known and _finite(tensors), "its state is not made of numbers")
    return State(named, tail=tail, owner=owner)


def _tensors_of(state: State) -> dict[str, Tensor]:
    assert state.present is None
    named = {f"{CARRY}{name}": tensor for name, tensor in state.tensors.items()}
    if state.tail is not None:
        named[TAIL] = state.tail
    return {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}


def _random_state(saved: Tensor) -> Tensor:
    """What torch's generator takes; it trusts its counters, so they are looked at here."""
    state = torch.Generator().get_state()
    _check(saved.shape == state.shape, "its random numbers are not those of this torch")
    left, seeded, following = (
        int.from_bytes(bytes(saved[part].tolist()), "little") for part in (LEFT, SEEDED, NEXT)
    )
    possible = seeded == 1 and 1 <= left <= NUMBERS and left + following in (1, NUMBERS + 1)
    _check(possible, "its random numbers are at a place that does not exist")
    # What lies behind the twister keeps normal numbers, and a session draws none.
    return torch.cat([saved[:TWISTER], state[TWISTER:]])


def _begins_character(unfinished: bytes) -> bool:
    try:
        unfinished.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False


def _finite(tensors: Mapping[str, Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def _whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < np.iinfo(np.int64).max


def _check(right: bool, otherwise: str) -> None:
    if not right:
        raise ValueError(otherwise)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(
        f"{path} is not a readable session file ({reason}): it is truncated, damaged or something "
        f"else; {OTHERWISE}."
    )


def _digits(digest: str) -> bytes:
    return f'"sha256":"{digest}"'.encode()


def short(value: Any) -> str:
    """Of something that may be anything, enough to know it by."""
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}..."


def printable(text: str) -> str:
    """Nothing in it that a terminal would obey."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
