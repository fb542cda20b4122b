"""Which text to read, and how: the settings that training and evaluation share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..runs.settings import Settings


@dataclass(frozen=True, kw_only=True)
class TextOptions(Settings):
    """The text, and how it is read."""

    data: str = ""
    """Text file, folder of texts, JSONL file, name of a corpus (wikitext-2, wikitext-103, pg19, enwik8,
    text8, and with the package: time-machine, a novel, and recall, recall-N, once-N, after-N, majority,
    synthetic), or ORG/NAME or ORG/NAME:CONFIG of a Hugging Face dataset."""
    data_dir: Path | None = None
    """Folder with the named corpora; defaults to the environment variable HOLDOVER_DATA."""
    cache_dir: Path | None = None
    """Folder for tokenized text; defaults to the environment variable HOLDOVER_CACHE, or to
    ~/.cache/holdover."""
    tokenizer: str | None = None
    """Name or folder of a tokenizer, or a fixed set of symbols: bytes (all 256), enwik8 (its 205),
    enwik8-204, text8; none takes the model's own tokenizer."""
    text_field: str = "text"
    """Field of JSONL lines and of dataset rows that holds the text."""
    new_document: str | None = None
    """Regular expression: a line of a text file that matches begins a new document."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes that are not UTF-8: stop and report their position, or replace them."""
    bos: bool = False
    """Put the tokenizer's beginning-of-text token before every document, so that the document's first
    token is predicted too."""
    held_out: float = 0.1
    """Share of a text at its end that is kept for validation and test, if it has no splits."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out={self.held_out} must be a share between 0 and 1.")
