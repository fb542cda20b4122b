"""Settings of the text to read, for training and evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """The text, and how to read it."""

    data: str = ""
    """Text file, folder of texts, JSONL file, name of a corpus (wikitext-2, wikitext-103, pg19, enwik8,
    text8; in the package: the novel time-machine, and the synthetic recall, recall-N, once-N, after-N,
    majority), or ORG/NAME or ORG/NAME:CONFIG of a Hugging Face dataset."""
    data_dir: Path | None = None
    """Folder that holds the named corpora (default: the environment's HOLDOVER_DATA)."""
    cache_dir: Path | None = None
    """Folder for tokenised text (default: the environment's HOLDOVER_CACHE, or ~/.cache/holdover)."""
    tokenizer: str | None = None
    """Name or folder of a tokenizer, or a set of byte symbols: bytes (all 256), enwik8 (its 205),
    enwik8-204, text8; none uses the model's own tokenizer."""
    text_field: str = "text"
    """Field of JSONL lines and of dataset rows that holds the text."""
    new_document: str | None = None
    """Regular expression: a line of a text file that matches begins a new document."""
    errors: Literal["strict", "replace"] = "strict"
    """For bytes that are not UTF-8: stop and say where they are, or replace them and go on."""
    bos: bool = False
    """Put the tokenizer's beginning-of-text token before every document, so that its first token is
    predicted too."""
    held_out: float = 0.1
    """For a text without splits: share at its end that is held out for validation and test."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out={self.held_out} must be a share between 0 and 1.")
