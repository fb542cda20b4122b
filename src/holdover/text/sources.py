"""Sources of text: files, folders, JSONL, the papers' corpora, datasets of the hub.

* A path is tried before a corpus name, and a corpus name before the hub.
* The name of a source is a base name: records hold no path of a machine.
* Texts and JSONL have no splits (`has_splits` is false), so the caller holds out a part.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from ..tokenization.document import Document, Source
from ..tokenization.files import check_is_text, compression, opened, pieces, refuse_binary, sha256
from .corpora import CORPORA, SPLITS, HubDataset, data_directory, local_files, missing_sentence
from .cutting import JsonlSource, compile_pattern, cut_documents
from .hub import HubSource

TEXT_SUFFIXES = {".txt", ".md"}
SPLIT_FOLDERS = ("train", "valid", "validation", "test")
DATASET_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")
FILE_NAME = re.compile(r".*\.(txt|md|jsonl|json|xz|gz)", re.IGNORECASE)


def open_source(
    spec: str,
    split: str = "train",
    *,
    data_dir: Path | None = None,
    text_field: str = "text",
    new_document: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
) -> Source:
    """The source that `spec` names, ready to read."""
    spec = str(spec)
    pattern = compile_pattern(new_document)
    split = "valid" if split == "validation" else split
    path = Path(spec)
    if spec and path.is_dir():
        return _open_folder(path, split, pattern, errors)
    if spec and path.exists():
        if re.search(r"\.jsonl(\.xz|\.gz)?$", path.name, re.IGNORECASE):
            _refuse_pattern(pattern, path.name, "line")
            return JsonlSource(path, text_field)
        if errors == "strict":
            check_is_text(path, path.name)
        elif not next(pieces(path), b""):
            raise ValueError(f"{path.name} is empty: give a file with text.")
        return TextSource(path.name, "train", [Part(path.name, path)], pattern, errors)
    if spec in CORPORA:
        return _open_corpus(spec, split, data_directory(data_dir), pattern)
    return _open_dataset(spec, split, text_field, pattern)


@dataclass(frozen=True)
class Part:
    """A file, or a range of its bytes."""

    name: str
    path: Path
    span: tuple[int, int] | None = None
    without: bytes = b""  # bytes that are removed

    def pieces(self) -> Iterator[bytes]:
        read = pieces(self.path, *(self.span or (0, None)))
        if not self.without:
            return read
        # An empty piece would mean the end.
        return filter(None, (piece.translate(None, self.without) for piece in read))

    def fingerprint(self) -> list[Any]:
        known = [sha256(self.path), compression(self.path), self.span]
        return [*known, self.without.hex()] if self.without else known

    def size(self) -> int | None:
        if self.without:
            return None
        if self.span is not None:
            return self.span[1] - self.span[0]
        return None if compression(self.path) else self.path.stat().st_size


@dataclass(frozen=True)
class TextSource:
    """Texts: each is a document, or is cut where a line matches."""

    name: str
    split: str
    parts: Sequence[Part]
    pattern: re.Pattern[str] | None = None
    errors: str = "strict"
    has_splits: bool = False
    note: str | None = None

    def documents(self) -> Iterator[Document]:
        for part in self.parts:
            if self.pattern is None:
                yield Document(part.name, lambda part=part: self._read(part))
            else:
                yield from cut_documents(part.name, self._read(part), self.pattern)

    def fingerprint(self) -> str:
        # One plain text file has the checksum that anyone can compute from it.
        first = self.parts[0]
        whole = (len(self.parts), first.span, self.pattern) == (1, None, None)
        if whole and not compression(first.path):
            return sha256(first.path)
        files = [part.fingerprint() for part in self.parts]
        return combined("text", self.pattern.pattern if self.pattern else None, files)

    def size(self) -> int | None:
        sizes = [part.size() for part in self.parts]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def _read(self, part: Part) -> Iterator[bytes]:
        for number, piece in enumerate(part.pieces()):
            if number == 0 and self.errors == "strict":
                refuse_binary(piece, part.name)
            yield piece


@dataclass(frozen=True)
class ArchiveSource:
    """Archives in which each member is a document, in order."""

    name: str
    split: str
    paths: Sequence[Path]
    note: str | None = None
    has_splits: bool = True

    def documents(self) -> Iterator[Document]:
        for path in self.paths:
            # Streamed, so a member can be read only when its turn comes.
            with opened(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
                for member in archive:
                    content = archive.extractfile(member) if member.isfile() else None
                    if content is not None:
                        name = f"{self.name}/{Path(member.name).stem}"
                        yield Document(name, lambda c=content: iter(lambda: c.read(1 << 18), b""))

    def fingerprint(self) -> str:
        return combined("archive", None, [sha256(path) for path in self.paths])

    def size(self) -> None:
        return None


def combined(kind: str, cut: Any, files: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps([kind, cut, list(files)]).encode()).hexdigest()


def _open_folder(
    folder: Path, split: str, pattern: re.Pattern[str] | None, errors: str
) -> TextSource:
    name = folder.resolve().name
    splits = [known for known in SPLIT_FOLDERS if (folder / known).is_dir()]
    if (folder / split).is_dir() and split not in splits:
        splits.append(split)
    root = folder
    if splits:
        named = [known for known in splits if known.replace("validation", "valid") == split]
        if not named:
            raise ValueError(
                f"The folder {name} has the splits {', '.join(splits)} but not {split}: choose one of "
                f"them, or make a folder {split} in it."
            )
        root = folder / named[0]
    parts = [
        Part(path.relative_to(folder).as_posix(), path)
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix())
        if path.suffix.lower() in TEXT_SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    if not any(part.size() for part in parts):
        what = "only empty texts" if parts else "no texts"
        raise ValueError(
            f"The folder {root} has {what}: put *.txt or *.md files into it or its subfolders."
        )
    return TextSource(name, split, parts, pattern, errors, has_splits=bool(splits))


def _open_corpus(
    name: str, split: str, folder: Path | None, pattern: re.Pattern[str] | None
) -> Source:
    if split not in SPLITS:
        raise ValueError(f"{name} has no split {split!r}: it has {', '.join(SPLITS)}.")
    corpus = CORPORA[name]
    if corpus.kind == "archive":
        _refuse_pattern(pattern, name, "book")
    paths = local_files(name, split, folder)
    if paths is not None and corpus.kind == "archive":
        return ArchiveSource(name, split, paths, corpus.note)
    if paths is not None:
        files = zip(paths, corpus.splits[split], strict=True)
        parts = [Part(f"{name}/{split}", path, file.span, corpus.without) for path, file in files]
        return TextSource(name, split, parts, pattern, has_splits=True, note=corpus.note)
    reason = None
    if corpus.hub is not None:
        try:
            return HubSource(corpus.hub, split, name, pattern)
        except (OSError, ValueError) as error:
            reason = str(error).rstrip(".")
    raise OSError(missing_sentence(name, split, folder, reason))


def _open_dataset(
    spec: str, split: str, text_field: str, pattern: re.Pattern[str] | None
) -> HubSource:
    named = DATASET_NAME.fullmatch(spec)
    if named is None:
        reason = "datasets are called ORG/NAME or ORG/NAME:CONFIG"
    elif FILE_NAME.fullmatch(spec):
        reason = "it is named like a file"
    else:
        try:
            return HubSource(HubDataset(named[1], named[2], text_field), split, spec, pattern)
        except OSError as error:
            reason = str(error)
    nearest = get_close_matches(spec, CORPORA, n=1)
    meant = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ValueError(
        f"{spec!r} is neither a file, a folder, a known corpus ({', '.join(CORPORA)}{meant}) nor a "
        f"dataset that could be loaded ({reason})."
    )


def _refuse_pattern(pattern: re.Pattern[str] | None, name: str, what: str) -> None:
    if pattern is not None:
        raise ValueError(
            f"{name} already has one document per {what}: --new-document cuts only texts that are one "
            "stream, leave it out."
        )
