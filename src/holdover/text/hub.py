"""Datasets of the Hugging Face hub, streamed row by row.

* A dataset is pinned to its revision when it is opened, so the fingerprint needs no second download.
  Without a revision the rows themselves are hashed.
* `datasets` is an extra. It is imported only when a hub dataset is opened.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..tokenization.document import Document
from .corpora import HubDataset
from .cutting import cut_documents, gathered


class HubSource:
    """One document per row, or all rows as the lines of one stream."""

    has_splits = True

    def __init__(
        self,
        dataset: HubDataset,
        split: str,
        name: str,
        pattern: re.Pattern[str] | None = None,
    ) -> None:
        self.name = name
        self.split = split
        self.note = dataset.note
        self._dataset = dataset
        self._pattern = pattern
        self._revision = _revision(dataset.name)
        self._rows, first = _load(dataset, split, self._revision)
        if first is None:
            raise ValueError(f"The {split} split of {name} has no rows: give another one.")
        if not isinstance(first.get(dataset.text_field, 0), str | None):
            raise ValueError(
                f"The rows of {name} have no text in a column {dataset.text_field!r}: name the one of "
                f"{', '.join(map(str, first))} that holds it with --text-field."
            )
        if pattern is not None and not dataset.lines:
            raise ValueError(
                f"{name} already has one document per row: --new-document cuts only texts that are one "
                "stream, leave it out."
            )

    def documents(self) -> Iterator[Document]:
        if not self._dataset.lines:
            for number, text in enumerate(self._texts(), start=1):
                yield Document(f"{self.name}, row {number}", lambda text=text: iter([text]))
        elif self._pattern is not None:
            yield from cut_documents(self.name, self._texts(), self._pattern)
        else:
            yield Document(self.name, lambda: gathered(self._texts()))

    def fingerprint(self) -> str:
        dataset = self._dataset
        pattern = None if self._pattern is None else self._pattern.pattern
        cut = [dataset.name, dataset.config, dataset.text_field, dataset.lines, pattern, self.split]
        digest = hashlib.sha256(json.dumps(["hub", *cut, self._revision]).encode())
        if self._revision is None:
            for text in self._texts():
                digest.update(len(text).to_bytes(8, "little") + text)
        return digest.hexdigest()

    def size(self) -> None:
        return None

    def _texts(self) -> Iterator[bytes]:
        for row in self._rows:
            text = row[self._dataset.text_field] or ""
            if self._dataset.lines and not text:
                text = " \n"
            yield text.encode("utf-8", "surrogatepass")


def _load(
    dataset: HubDataset, split: str, revision: str | None
) -> tuple[Iterable[dict[str, Any]], dict[str, Any] | None]:
    """The rows, and the first one: some failures appear only when reading begins."""
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"Reading {dataset.name} from the hub needs the package datasets: "
            "pip install 'holdover[data]'."
        ) from error
    named = "validation" if split == "valid" else split
    try:
        rows = datasets.load_dataset(
            dataset.name, dataset.config, split=named, streaming=True, revision=revision
        )
        return rows, next(iter(rows), None)
    # Many libraries can fail here, each with its own errors. All mean that it cannot be read.
    except Exception as error:
        raise OSError(first_line(error)) from error


def _revision(name: str) -> str | None:
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(name).sha
    # Not reachable, or missing: loading says which, or uses a copy on this machine.
    except Exception:
        return None


def first_line(error: BaseException) -> str:
    """The first line of another library's error, as a part of our sentence."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(" .:")
