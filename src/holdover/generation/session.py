"""Session: one text that can be read and continued without end, and saved in a small file.

* Reading goes window by window, writing token by token, in any order; between windows there is only
  the state, so a session of a whole library is as small as one of a page.
* Everything that changes is one immutable `SessionPosition`. It is replaced when a step is done: a
  step that fails or is interrupted leaves the session where it was, and the writer is rebuilt from
  there.
* Each text that is read is tokenised on its own; the pieces of one file get the same ids as the
  whole file.
"""

import codecs
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..recurrent.checks import check_vocabulary
from ..recurrent.model import RecurrentModel
from ..tokenization.document import Document
from ..tokenization.encoders import encoder_for
from ..tokenization.files import check_is_text, compression, pieces, sha256
from .session_checks import (
    check_errors,
    check_exists,
    check_not_training,
    checked_seed,
    checked_stops,
    checked_tokens,
)
from .session_file import printable, read_session, write_session
from .session_info import lasting_name
from .session_owner import check_fits, fingerprint
from .session_position import FileRead, Sampling, SavedSession, SessionPosition, layout
from .writer import Sampler, Writer

# Windows between two places where reading can be interrupted.
WINDOWS_AT_ONCE = 16
# A session remembers this many files, the newest ones.
REMEMBERED = 256


class Session:
    """A model, a tokenizer, and a position in a text of any length.

    tokenizer: a fast one of transformers, or an encoder of holdover.tokenization. No special tokens
    are added: if a text should begin with one, read it as text. seed: for the session's own random
    generator, which is saved with it. temperature, top_k, top_p: how tokens are chosen until
    `write` changes it. model_name, tokenizer_name: names by which the command line can load both
    again; folders are kept as absolute paths.
    """

    def __init__(
        self,
        model: RecurrentModel,
        tokenizer: Any,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        model_name: str | None = None,
        tokenizer_name: str | None = None,
    ) -> None:
        if not isinstance(model, RecurrentModel):
            raise TypeError(
                f"A session needs a model that holdover has attached a recurrence to, not a "
                f"{type(model).__name__}: call holdover.add_recurrence(model, config), for a stock "
                'model with carry="none".'
            )
        Writer(model)  # discarded: this checks that the model can write
        self.model = model
        self.encoder = encoder_for(tokenizer)
        check_vocabulary(model, self.encoder)
        self.model_name = lasting_name(model_name)
        self.tokenizer_name = lasting_name(tokenizer_name)
        self._texts = self.encoder.token_texts()
        self._sizes = np.array([len(text) for text in self._texts])
        self._generator = torch.Generator()
        self._writer: Writer | None = None
        sampling = Sampling().changed(temperature, top_k, top_p)
        self._at = SessionPosition(self._generator.get_state(), sampling)
        self.reseed(seed)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: RecurrentModel, tokenizer: Any) -> "Session":
        """Continue a saved session: it writes the same tokens that it would have written next."""
        saved = read_session(path)
        session = cls(model, tokenizer)
        session.model_name, session.tokenizer_name = saved.model_name, saved.tokenizer_name
        check_fits(saved, model, session.encoder, str(path))
        state = saved.place.state
        session._at = replace(saved.place, state=None if state is None else state.to(model.device))
        session._generator.set_state(session._at.random)
        session._ready()
        return session

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the session to one file, atomically. The file can leak the text: protect it."""
        # Weights in training have no fingerprint: a file without one could never be loaded.
        check_not_training(self.model)
        # Leave out names that cannot be printed: `load` would refuse a file that contains one.
        tokenizer, model = (
            name if name is None or name.isprintable() else None
            for name in (self.tokenizer_name, self.model_name)
        )
        owner = self.model.owner()
        write_session(path, SavedSession(self._at, owner, self._fingerprint, tokenizer, model))

    @property
    def position(self) -> int:
        """Tokens read and written."""
        return self._at.position

    @property
    def windows(self) -> int:
        """Windows begun so far. The last token written is read only when another follows it."""
        return self._layout(self._at)[0]

    @property
    def state_bytes(self) -> int:
        """The size of the state that is carried into the open window."""
        return 0 if self._at.state is None else self._at.state.nbytes

    @property
    def sampling(self) -> Sampling:
        return self._at.sampling

    @property
    def files(self) -> tuple[FileRead, ...]:
        """Files that were read completely or in part, the newest last."""
        return self._at.files

    def reseed(self, seed: int) -> None:
        """Restart the random generator with another seed."""
        self._generator.manual_seed(checked_seed(seed))
        self._at = replace(self._at, random=self._generator.get_state())

    def read(self, text: str | Path, *, errors: str = "strict") -> int:
        """Read a text (a str) or a file (a Path) after everything before; returns the number of
        tokens.

        A text is read whole or not at all; for a file see `read_on`. errors: "strict" refuses bytes
        that are not UTF-8 and reports where they are, "replace" reads the replacement character for
        them. With a byte encoder, both read every byte as it is. "strict" also refuses binary
        files.
        """
        check_errors(errors)
        before = self.position
        if isinstance(text, Path):
            for _ in self.read_on(text, errors=errors):
                pass
        elif isinstance(text, str):
            self._read_text(text)
        else:
            raise TypeError(
                f"A session reads a str (a text) or a pathlib.Path (a file), not "
                f"{type(text).__name__}."
            )
        return self.position - before

    def read_on(self, path: Path, *, errors: str = "strict") -> Iterator[FileRead]:
        """Read a file piece by piece: after each piece the session can be saved, or reading
        stopped.

        A file that was read in part is continued, even in another process; a file that was read to
        its end is read again. Compressed files (.gz, .xz) are decompressed.
        """
        check_errors(errors)
        check_not_training(self.model)
        file = self.begun(path)
        if errors == "strict":
            check_is_text(path, file.name)
        document = Document(file.name, lambda: pieces(path))
        for ids in self._encoded(document, errors, skipped=file.tokens):
            with self._undone_if_it_fails():
                place = self._fed(self._at, ids)
                come = file.bytes + int(self._sizes[ids].sum())
                if not compression(path):
                    come = min(come, file.size)
                file = replace(file, tokens=file.tokens + len(ids), bytes=come)
                self._at = self._noted(place, file)
            yield file
        file = replace(file, finished=True)
        self._at = self._noted(self._at, file)
        yield file

    def begun(self, path: Path) -> FileRead:
        """The record of a file that was read in part, or a new record for any other file."""
        check_exists(path)
        name = printable(os.path.normpath(path))
        found = FileRead(name, path.stat().st_size, sha256(path))
        for file in self.files:
            if not file.finished and file.sha256 == found.sha256:
                return file
            if not file.finished and file.name == name:
                raise ValueError(
                    f"{path} has changed since a part of it was read ({file.size:,} bytes then, "
                    f"{found.size:,} now, and another SHA-256): give the file as it was, or this one "
                    "under another name, to be read from its beginning."
                )
        return found

    def write(
        self,
        tokens: int,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: str | Sequence[str] = (),
    ) -> str:
        """Write up to `tokens` tokens and return their text; see `stream`."""
        chosen = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        return "".join(self.stream(tokens, **chosen, stop=stop))

    def stream(
        self,
        tokens: int,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        stop: str | Sequence[str] = (),
    ) -> Iterator[str]:
        """Write up to `tokens` tokens, as pieces of text that contain whole characters only.

        A token is written when the next piece is requested. If the last token ends within a
        character, its bytes are kept for the next call (reading drops them). Given values of
        temperature, top_k and top_p also apply to later calls; top_k=0 and top_p=1 remove a limit.
        stop: writing ends after the first occurrence of one of these texts; it stays in the text,
        with the rest of its last token.
        """
        tokens, stops = checked_tokens(tokens), checked_stops(stop)
        check_not_training(self.model)
        if self.position == 0:
            raise ValueError("There is nothing to continue: read at least one token first.")
        return self._stream(tokens, self.sampling.changed(temperature, top_k, top_p), stops)

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.encoder)

    def _stream(self, tokens: int, sampling: Sampling, stops: Sequence[str]) -> Iterator[str]:
        longest = max(map(len, stops), default=0)
        said = ""
        for _ in range(tokens):
            piece = self._write_one(sampling)
            said = said[max(len(said) - longest, 0) :] + piece
            stopped = any(stop in said for stop in stops)
            if piece:
                yield piece
            if stopped:
                return

    def _write_one(self, sampling: Sampling) -> str:
        with self._undone_if_it_fails():
            writer = self._ready()
            writer.sampler = Sampler(
                sampling.temperature, sampling.top_k, sampling.top_p, self._generator
            )
            token = writer.next_token()
            characters = codecs.getincrementaldecoder("utf-8")("replace")
            text = characters.decode(self._at.unfinished + self._text(token))
            self._at = replace(
                self._gone_on(self._at, []),
                random=self._generator.get_state(),
                sampling=sampling,
                unread=token,
                position=self._at.position + 1,
                unfinished=characters.getstate()[0],
            )
        return text

    def _read_text(self, text: str) -> None:
        try:
            content = text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"The text cannot be read: character {error.start} is half of a surrogate pair, "
                "which is not a character: remove it."
            ) from error
        document = Document("the text", lambda: iter([content]))
        with self._undone_if_it_fails():
            place = self._at
            for ids in self._encoded(document, "strict"):
                place = self._fed(place, ids)
            self._at = place

    def _encoded(self, document: Document, errors: str, skipped: int = 0) -> Iterator[np.ndarray]:
        """Ids of a document, a few windows at a time, without the first `skipped` ids."""
        settings = self.model.settings
        size = WINDOWS_AT_ONCE * (settings.window - settings.overlap)
        for ids, _, _ in self.encoder.encode_document(document, errors):
            skipped, ids = max(skipped - len(ids), 0), ids[skipped:]
            for start in range(0, len(ids), size):
                yield ids[start : start + size].astype(np.int64)

    def _fed(self, place: SessionPosition, ids: np.ndarray) -> SessionPosition:
        writer = self._ready()
        writer.read(torch.as_tensor(ids)[None])
        return replace(self._gone_on(place, ids.tolist()), unfinished=b"")

    def _gone_on(self, place: SessionPosition, ids: list[int]) -> SessionPosition:
        """The position after the unread token (if any) and `ids`; the writer has read them all."""
        waited = [] if place.unread is None else [place.unread]
        place = replace(place, unread=None, position=place.position + len(ids))
        held = self._layout(place)[1]
        known = [*place.open, *waited, *ids]
        state = None if self._writer is None else self._writer.state
        return replace(place, state=state, open=tuple(known[len(known) - held :]))

    def _layout(self, place: SessionPosition) -> tuple[int, int]:
        settings = self.model.settings
        read = place.position - (place.unread is not None)
        return layout(read, settings.window, settings.overlap)

    def _noted(self, place: SessionPosition, file: FileRead) -> SessionPosition:
        others = [known for known in place.files if known.finished or known.sha256 != file.sha256]
        return replace(place, files=(*others[1 - REMEMBERED :], file))

    def _ready(self) -> Writer:
        """The writer. If there is none, it is rebuilt, which reads the open window again."""
        if self._writer is None:
            place = self._at
            writer = Writer(self.model, place.state)
            waiting = () if place.unread is None else (place.unread,)
            for ids in (place.open, waiting):
                if ids:
                    writer.read(torch.tensor([ids]))
            self._writer = writer
            self._at = self._gone_on(place, [])
        return self._writer

    def _text(self, token: int) -> bytes:
        # Embeddings may have more rows than the tokenizer has ids, padded to a round number.
        return self._texts[token] if token < len(self._texts) else b""

    @contextmanager
    def _undone_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # Only the writer holds the unfinished step: `_at` is still the position before it.
            self._writer = None
            self._generator.set_state(self._at.random)
            raise
