"""Tokenised text on disk: encoded once, mapped into memory ever after.

* A folder with its final name is whole: it was built beside it and renamed. What a killed process
  leaves is a `.partial-*` folder, which nobody reads and a later build removes.
* Two processes may build the same: the one that comes second throws its own away.
* The key is made of what decides the ids, not of names: a renamed file is not encoded again.
"""

import hashlib
import json
import os
import shutil
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

import numpy as np
import psutil
from rich.console import Console

from ..tokenization.document import Source
from ..tokenization.text_counter import COUNTS
from .progress import progress, say
from .tokens import Encoder, Tokens

FORMAT = "holdover.tokens.v3"
# Bytes of the text that are decoded again to see whether a tokenizer is exact.
SAMPLE = 1 << 16
PARTIAL = ".partial-"
# After so long the partial folder of another machine's process is taken for abandoned.
ABANDONED_AFTER = 24 * 3600.0


def tokenise(
    source: Source,
    encoder: Encoder,
    *,
    cache_dir: Path | None = None,
    bos: bool = False,
    errors: str = "strict",
    console: Console | None = None,
) -> Tokens:
    """The source's documents as ids; from the cache where they are in it."""
    console = console or Console(quiet=True)
    if bos and encoder.bos is None:
        raise ValueError(
            f"The tokenizer {encoder.name} has no token for the beginning of a text: leave bos out."
        )
    root = _cache_directory(cache_dir)
    content = source.fingerprint()
    made_of = [FORMAT, encoder.fingerprint(), content, bos, errors]
    folder = root / hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
    label = f"{source.name} ({source.split})" if source.has_splits else source.name
    about: dict[str, Any] = {
        "source": source.name,
        "split": source.split,
        "sha256": content,
        "tokenizer": encoder.name,
        "tokenizer_sha256": encoder.fingerprint()[:16],
        "bos": bos,
        "errors": errors,
    }
    if note := getattr(source, "note", None):
        about["note"] = note
    if folder.exists():
        try:
            tokens = _open(folder, encoder, about)
        except (ValueError, OSError, KeyError, TypeError) as error:
            say(console, f"The cached tokens of {label} are damaged ({error}); making them anew.")
            with _writing(root):
                shutil.rmtree(folder)
        else:
            say(console, f"{label}: {len(tokens):,} tokens, from the cache.")
            return tokens
    _build(folder, source, encoder, bos, errors, console, label)
    return _open(folder, encoder, about)


def _build(
    folder: Path,
    source: Source,
    encoder: Encoder,
    bos: bool,
    errors: str,
    console: Console,
    label: str,
) -> None:
    root = folder.parent
    with _writing(root):
        root.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(root)
        # Not a temporary folder of the system's: those are closed to other users for good.
        partial = root / f"{PARTIAL}{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"
        partial.mkdir()
    try:
        with _Writer(partial, encoder, bos) as writer, progress(console, label, source) as report:
            for document in source.documents():
                hashed = replace(document, read=writer.hashing(document.read))
                for ids, scored, counts in encoder.encode_document(hashed, errors):
                    writer.add(ids, scored, counts, document.scored is not None)
                    report(counts["bytes"], writer.tokens)
                writer.end_document()
            if not writer.tokens:
                raise ValueError(
                    f"{label} gives no tokens with the tokenizer {encoder.name}: its texts are empty "
                    "or white space; give another text."
                )
        with _writing(root):
            try:
                partial.rename(folder)
            except OSError:
                # Another process was faster: its folder is as good as ours.
                if not folder.is_dir():
                    raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _smallest(vocabulary: int) -> type:
    """The type that holds every id in the fewest bytes."""
    if vocabulary <= 1 << 8:
        return np.uint8
    return np.uint16 if vocabulary <= 1 << 16 else np.uint32


class _Writer:
    """Writes the files of a cache folder as the pieces come."""

    def __init__(self, folder: Path, encoder: Encoder, bos: bool) -> None:
        self.tokens = 0
        self._folder = folder
        self._dtype = np.dtype(_smallest(encoder.vocabulary))
        self._bos = encoder.bos if bos else None
        self._bounds = array("q", [0])
        self._counts = {name: array("q") for name in COUNTS}
        self._counted = dict.fromkeys(COUNTS, 0)
        self._dropped = 0
        self._files = ExitStack()
        self._scored: IO[bytes] | None = None
        # Of the text alone, however it is compressed and cut into documents.
        self._content = hashlib.sha256()
        self._encoder = encoder
        # The beginning of the first document that has tokens, as it was given and as ids.
        self._sample, self._sample_ids = bytearray(), array("q")

    def hashing(self, read: Callable[[], Iterator[bytes]]) -> Callable[[], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            for piece in read():
                self._content.update(piece)
                if not self.tokens and len(self._sample) < SAMPLE:
                    self._sample += piece[:SAMPLE]
                yield piece

        return pieces

    def __enter__(self) -> "_Writer":
        with _writing(self._folder.parent):
            self._ids = self._open("ids.bin")
        return self

    def _open(self, name: str) -> IO[bytes]:
        return self._files.enter_context(open(self._folder / name, "wb"))

    def add(
        self, ids: np.ndarray, scored: np.ndarray | None, counts: dict[str, int], ranges: bool
    ) -> None:
        for name in COUNTS:
            self._counted[name] += counts[name]
        if not len(ids):
            return
        if scored is None:
            scored = np.ones(len(ids), dtype=bool)
        if not self.tokens:
            self._sample_ids.extend(ids[:SAMPLE].tolist())
        if self._bos is not None and self.tokens == self._bounds[-1]:
            ids = np.concatenate([[self._bos], ids])
            scored = np.concatenate([[not ranges], scored])
        with _writing(self._folder.parent):
            self._ids.write(ids.astype(self._dtype).tobytes())
            if ranges and self._scored is None:
                self._begin_scored()
            if self._scored is not None:
                self._scored.write(scored.astype(np.uint8).tobytes())
        self.tokens += len(ids)

    def _keeps_bytes(self) -> bool:
        """Whether the tokenizer gives back the bytes it was given, as far as the sample tells."""
        read = self._encoder.decode(self._sample_ids.tolist())
        # Either may have been cut in the middle of a token or a character.
        same = min(len(read), len(self._sample))
        if len(read) != len(self._sample):
            same = max(same - 64, 0)
        return same > 0 and read[:same] == self._sample[:same]

    def end_document(self) -> None:
        if not self.tokens:
            self._sample.clear()
        if self.tokens == self._bounds[-1]:
            self._dropped += 1
        else:
            self._bounds.append(self.tokens)
            for name in COUNTS:
                self._counts[name].append(self._counted[name])
        self._counted = dict.fromkeys(COUNTS, 0)

    def _begin_scored(self) -> None:
        """The first document with ranges: of all before it every token is predicted."""
        self._scored = self._open("scored.bin")
        for start in range(0, self.tokens, 1 << 20):
            self._scored.write(b"\1" * min(1 << 20, self.tokens - start))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with suppress(OSError):
                self._files.close()
            return
        with _writing(self._folder.parent):
            with self._files:
                for file in (self._ids, self._scored):
                    if file is not None:
                        file.flush()
                        os.fsync(file.fileno())
            bounds = np.asarray(self._bounds, dtype=np.int64)
            counts = np.array([self._counts[name] for name in COUNTS], dtype=np.int64)
            np.save(self._folder / "bounds.npy", bounds, allow_pickle=False)
            np.save(self._folder / "counts.npy", counts, allow_pickle=False)
            sizes = {path.name: path.stat().st_size for path in sorted(self._folder.iterdir())}
            about = {
                "format": FORMAT,
                "dtype": self._dtype.name,
                "documents": len(self._bounds) - 1,
                "tokens": self.tokens,
                "dropped": self._dropped,
                "content_sha256": self._content.hexdigest(),
                "tokenizer_keeps_bytes": self._keeps_bytes(),
                "sizes": sizes,
            }
            with open(self._folder / "about.json", "w", encoding="utf-8") as file:
                json.dump(about, file, indent=1)
                file.flush()
                os.fsync(file.fileno())


def _open(folder: Path, encoder: Encoder, about: dict[str, Any]) -> Tokens:
    """The tokens of a cache folder; ValueError where it is not whole."""
    written = json.loads((folder / "about.json").read_bytes())
    if written["format"] != FORMAT:
        raise ValueError(f"format {written['format']!r} where {FORMAT!r} was expected")
    for name, size in written["sizes"].items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else "none"
        if found != size:
            raise ValueError(f"{name} has {found} bytes where {size} were expected")
    bounds = np.load(folder / "bounds.npy", allow_pickle=False)
    counts = np.load(folder / "counts.npy", allow_pickle=False)
    scored = None
    if "scored.bin" in written["sizes"]:
        scored = np.memmap(folder / "scored.bin", dtype=np.bool_, mode="r")
    told = ("documents", "tokens", "dropped", "content_sha256", "tokenizer_keeps_bytes")
    kept = {name: written[name] for name in told}
    return Tokens(
        ids=np.memmap(folder / "ids.bin", dtype=np.dtype(written["dtype"]), mode="r"),
        bounds=bounds,
        counts=dict(zip(COUNTS, counts, strict=True)),
        encoder=encoder,
        scored=scored,
        about={**about, **kept},
    )


def _cache_directory(given: Path | None) -> Path:
    if given is not None:
        return Path(given)
    named = os.environ.get("HOLDOVER_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "holdover" / "tokens"


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    """Says of a disk that is full or read-only what to do about it."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"The token cache {root} cannot be written ({error.strerror or error}): make room or "
            "name another folder with --cache-dir or HOLDOVER_CACHE."
        ) from error


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{PARTIAL}*"):
        host, _, process = folder.name.removeprefix(PARTIAL).rpartition("-")[0].rpartition("-")
        abandoned = False
        if host == socket.gethostname() and process.isdigit():
            abandoned = not psutil.pid_exists(int(process))
        else:
            # It may vanish while it is looked at: then its builder is alive.
            with suppress(OSError):
                newest = max(path.stat().st_mtime for path in [folder, *folder.iterdir()])
                abandoned = time.time() - newest > ABANDONED_AFTER
        if abandoned:
            shutil.rmtree(folder, ignore_errors=True)
