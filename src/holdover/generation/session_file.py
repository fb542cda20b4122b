"""Writes and reads session files: the tensors, and a full check of everything a session relies on.

* A session file never holds a key-value cache. The open window is kept as ids and read again, so the
  file stays small.
* session_info.py describes the format, and reads the header.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors
from torch import Tensor

from ..state import NO_TOKEN, State
from ..storage import write_atomically
from .session_info import (
    BLANK,
    CARRY,
    FORMAT,
    OPEN,
    RANDOM,
    UNFINISHED,
    UNREAD,
    VERSION,
    SessionHeader,
    check,
    damage_reported,
    digits,
    printable,
    read_header,
    short,
)
from .session_position import FileRead, Sampling, SavedSession, SessionPosition, layout

__all__ = ["BLANK", "FORMAT", "VERSION", "printable", "read_session", "short", "write_session"]

TAIL = "state.tail"
OWN = {OPEN: torch.int32, UNREAD: torch.int32, RANDOM: torch.uint8, UNFINISHED: torch.uint8}
# The Mersenne twister inside the state of torch's generator: its counters, size and count of numbers.
LEFT, SEEDED, NEXT = slice(8, 12), slice(12, 16), slice(16, 24)
TWISTER, NUMBERS = 5016, 624


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
    content = {
        "position": place.position,
        "sampling": asdict(place.sampling),
        "files": [asdict(file) for file in place.files],
        "owner": dict(saved.owner),
        "tokenizer": saved.tokenizer,
        "tokenizer_name": saved.tokenizer_name,
        "model_name": saved.model_name,
    }
    header = {"format": FORMAT, "version": VERSION, "sha256": BLANK, "session": json.dumps(content)}
    written = to_safetensors(own, metadata=header)
    digest = hashlib.sha256(written).hexdigest()
    write_atomically(Path(path), written.replace(digits(BLANK), digits(digest), 1))


def read_session(path: str | os.PathLike[str]) -> SavedSession:
    """The content of a file, all of it checked; the model and the tokenizer are not needed for that."""
    header = read_header(path)
    with damage_reported(header.path):
        try:
            return _checked(from_safetensors(header.content), header)
        except SafetensorError as error:
            raise ValueError(str(error)) from error


def _checked(tensors: dict[str, Tensor], header: SessionHeader) -> SavedSession:
    """Check the tensors that a session relies on; a ValueError names the first thing that is wrong."""
    session = header.session
    own = {name: tensors.pop(name) for name in OWN}
    for name, dtype in OWN.items():
        check(own[name].dtype == dtype and own[name].ndim == 1, f"{name} is not a row of {dtype}")
    owner, position = session["owner"], session["position"]
    window, overlap = owner["window"], owner["overlap"]
    ids, unread = own[OPEN].tolist(), own[UNREAD].tolist()
    check(len(unread) <= min(1, position), "its position is not a number")
    windows, held = layout(position - len(unread), window, overlap)
    check(len(ids) == held, f"its open window has {len(ids)} tokens where {held} were expected")
    check(min(ids + unread, default=0) >= 0, "ids of its tokens are negative")
    unfinished = bytes(own[UNFINISHED].tolist())
    check(not unfinished or _begins_character(unfinished), "its last character is not UTF-8")
    place = SessionPosition(
        random=_random_state(own[RANDOM]),
        sampling=Sampling(**session["sampling"]),
        state=_state(tensors, owner, windows, overlap),
        open=tuple(ids),
        unread=unread[0] if unread else None,
        position=position,
        unfinished=unfinished,
        files=tuple(FileRead(**file) for file in session["files"]),
    )
    names = session["tokenizer_name"], session["model_name"]
    return SavedSession(place, owner, session["tokenizer"], *names, len(header.content))


def _state(
    tensors: dict[str, Tensor], owner: Mapping[str, Any], windows: int, overlap: int
) -> State | None:
    if windows <= 1:
        check(not tensors, "it carries a state into its first window")
        return None
    tail = tensors.pop(TAIL, None)
    check(
        (tail is not None) == (overlap > 0),
        "it has no tokens of its overlap, or has them without an overlap",
    )
    if tail is not None:
        fits = tail.dtype == torch.long and tuple(tail.shape) == (1, overlap)
        # A window is closed when it is full: its last tokens are all there.
        check(fits and bool((tail > NO_TOKEN).all()), "the tokens of its overlap are wrong")
    named = {name.removeprefix(CARRY): tensor for name, tensor in tensors.items()}
    known = all(
        name.startswith(CARRY) and t.ndim and t.shape[0] == 1 for name, t in tensors.items()
    )
    check(bool(named) and known and _finite(tensors), "its state is not made of numbers")
    return State(named, tail=tail, owner=owner)


def _tensors_of(state: State) -> dict[str, Tensor]:
    assert state.present is None
    named = {f"{CARRY}{name}": tensor for name, tensor in state.tensors.items()}
    if state.tail is not None:
        named[TAIL] = state.tail
    return {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}


def _random_state(saved: Tensor) -> Tensor:
    """A state for torch's generator, which trusts its counters, so they are checked here."""
    state = torch.Generator().get_state()
    check(saved.shape == state.shape, "its random state does not fit this version of torch")
    left, seeded, following = (
        int.from_bytes(bytes(saved[part].tolist()), "little") for part in (LEFT, SEEDED, NEXT)
    )
    possible = seeded == 1 and 1 <= left <= NUMBERS and left + following in (1, NUMBERS + 1)
    check(possible, "the counters of its random state are impossible")
    # The bytes after the twister hold normal numbers, and a session draws none.
    return torch.cat([saved[:TWISTER], state[TWISTER:]])


def _begins_character(unfinished: bytes) -> bool:
    try:
        unfinished.decode()
    except UnicodeDecodeError as error:
        return error.start == 0 and error.reason == "unexpected end of data"
    return False


def _finite(tensors: Mapping[str, Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())
