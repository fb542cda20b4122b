"""Tokenised text on disk: encoded once, then mapped into memory.

* A folder with its final name is complete, because it is built under another name and then renamed.
  A killed process leaves a `.partial-*` folder, which nobody reads and a later build removes.
* Two processes may build the same folder. The second one to finish deletes its own.
* The key depends on the content, the tokenizer and the settings, not on names. A renamed file is not
  encoded again.
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

from ..storage import TOKENS
from ..tokenization.document import COUNTS, Source
from .progress import progress, say
from .tokens import Encoder, Tokens

FORMAT = f"holdover.tokens.v{TOKENS.version}"
# Bytes of the text that are decoded again to check that the tokenizer keeps every byte.
SAMPLE = 1 << 16
PARTIAL = ".partial-"
# Seconds after which the partial folder of another machine counts as abandoned.
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
    """The source's documents as ids, from the cache if it has them."""
    console = console or Console(quiet=True)
    if bos and encoder.bos is None:
        raise ValueError(
            f"The tokenizer {encoder.name} has no token for the beginning of a text: leave --bos out."
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
            say(console, f"The cached tokens of {label} are damaged ({error}); making them again.")
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
        # Not a system temporary folder: other users could never read it.
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
                    "or white space; give another text with --data."
                )
        with _writing(root):
            try:
                partial.rename(folder)
            except OSError:
                # Another process was faster. Its folder holds the same.
                if not folder.is_dir():
                    raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _smallest(vocabulary: int) -> type:
    """The smallest integer type that holds every id."""
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
        # A checksum of the text alone: compression and document boundaries do not change it.
        self._content = hashlib.sha256()
        self._encoder = encoder
        # The beginning of the first document with tokens, as bytes and as ids.
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
        """Whether decoding the sample's ids gives back its bytes."""
        read = self._encoder.decode(self._sample_ids.tolist())
        # Either may end in the middle of a token or a character.
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
        """At the first document with ranges. Before it, every token is predicted."""
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
    """The tokens of a cache folder; ValueError if it is not complete."""
    written = json.loads((folder / "about.json").read_bytes())
    if written["format"] != FORMAT:
        raise ValueError(f"format {written['format']!r}, and {FORMAT!r} was expected")
    for name, size in written["sizes"].items():
        path = folder / name
        actual = path.stat().st_size if path.is_file() else "none"
        if actual != size:
            raise ValueError(f"{name} has {actual} bytes, and {size} were expected")
    bounds = np.load(folder / "bounds.npy", allow_pickle=False)
    counts = np.load(folder / "counts.npy", allow_pickle=False)
    scored = None
    if "scored.bin" in written["sizes"]:
        scored = np.memmap(folder / "scored.bin", dtype=np.bool_, mode="r")
    names = ("documents", "tokens", "dropped", "content_sha256", "tokenizer_keeps_bytes")
    kept = {name: written[name] for name in names}
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
    """Say what to do if the disk is full or read-only."""
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
            # If it disappears during the check, its builder is alive.
            with suppress(OSError):
                newest = max(path.stat().st_mtime for path in [folder, *folder.iterdir()])
                abandoned = time.time() - newest > ABANDONED_AFTER
        if abandoned:
            shutil.rmtree(folder, ignore_errors=True)
