"""The papers' corpora by name: the files of each split, their checksums, and a hub dataset if any.

* Local files are in one data directory. A file with another checksum is refused, not read.
* WikiText is one stream, as the papers read it. The hub has a row per line and empties blank lines.
  With the blank lines restored, the joined rows are the original file.
* Every hub name here was checked to hold data files. `deepmind/pg19` and `LTCB/enwik8` hold only
  loading scripts, which `datasets` no longer runs.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..tokenization.files import sha256

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class CorpusFile:
    path: str  # relative to the data directory
    sha256: str
    # The range of bytes of the uncompressed content; None: all of it.
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class HubDataset:
    name: str
    config: str | None = None
    text_field: str = "text"
    lines: bool = False  # rows are the lines of one stream
    note: str | None = None


@dataclass(frozen=True)
class Corpus:
    # stream: the files of a split are one document; archive: each member is a document.
    kind: Literal["stream", "archive"]
    splits: dict[str, tuple[CorpusFile, ...]]
    hub: HubDataset | None
    note: str | None = None  # for every record made from the local files
    without: bytes = b""  # bytes that are removed from every split


def _ninety_five_five(path: str, checksum: str) -> dict[str, tuple[CorpusFile, ...]]:
    million = 1_000_000
    spans = {"train": (0, 90), "valid": (90, 95), "test": (95, 100)}
    return {
        split: (CorpusFile(path, checksum, (start * million, stop * million)),)
        for split, (start, stop) in spans.items()
    }


CORPORA: dict[str, Corpus] = {
    "wikitext-2": Corpus(
        "stream",
        {
            "train": (
                CorpusFile(
                    "wikitext/wikitext-2.train.txt.xz",
                    "7f5b03a0219b81adcc680f2d8bd24b7b3f19e4a01ac52f9533ca18cc807ac2bd",
                ),
            ),
            "valid": (
                CorpusFile(
                    "wikitext/wikitext-2.valid.txt.xz",
                    "1322771e23310248961e17b3c55df138cd3e5c57f2e36ac1d131e9c6158ccd74",
                ),
            ),
            "test": (
                CorpusFile(
                    "wikitext/wikitext-2.test.txt.xz",
                    "306c08b989e77ca6d5587c58d90bf8f8fa3be85671b0eda75315de9f68584fbe",
                ),
            ),
        },
        HubDataset("Salesforce/wikitext", "wikitext-2-v1", lines=True),
        "tokens with <unk>, not the raw text",
    ),
    "wikitext-2-raw": Corpus(
        "stream",
        {
            "test": (
                CorpusFile(
                    "wikitext/wikitext-2-raw.wiki.test.raw.xz",
                    "f3601aa28de83b78ce5e3eb1a746efdb27915aa146e0d0537fa929133584aede",
                ),
            ),
        },
        HubDataset("Salesforce/wikitext", "wikitext-2-raw-v1", lines=True),
        "raw text; of the data directory's layout only the test split",
    ),
    "wikitext-103": Corpus(
        "stream",
        {
            "valid": (
                CorpusFile(
                    "wikitext/wikitext-103.wiki.valid.tokens.xz",
                    "4e6e7f3093396a4eeae1d3e63f2b0c0ecac2cebf642e29837b0db201d0fe5978",
                ),
            ),
            "test": (
                CorpusFile(
                    "wikitext/wikitext-103.wiki.test.tokens.xz",
                    "25bdc2a7e38514f9af643cf848a9c5982056a9af073d7eba957aa80017c22a36",
                ),
            ),
        },
        HubDataset("Salesforce/wikitext", "wikitext-103-v1", lines=True),
        "tokens with <unk>, not the raw text; the data directory's layout has no train split",
    ),
    "pg19": Corpus(
        "archive",
        {
            "train": (
                CorpusFile(
                    "pg19/train-0.tar.xz",
                    "04ed601fc97343198e7918a2c8462b991455c3f13b16843f884322b04011ffe2",
                ),
                CorpusFile(
                    "pg19/train-1.tar.xz",
                    "3d9ea1c3eb06607d1cc38d365d8b46b743d65353aeaf17b43ec12563a6e4b9a5",
                ),
            ),
            "valid": (
                CorpusFile(
                    "pg19/valid.tar.xz",
                    "0cd25b1a95d7e4a5b4bbf8e241c33139bf3ed4f7956a9055d2aa460fb182e90d",
                ),
            ),
            "test": (
                CorpusFile(
                    "pg19/test.tar.xz",
                    "d65cef6610bcab55bb203faf03c0c2c33452816281f895fb58c4a5570d17b8f6",
                ),
            ),
        },
        HubDataset(
            "emozilla/pg19",
            note="a mirror of PG-19 that others made; the whole train split is 11 GB",
        ),
        "400 / 10 / 22 books in Gutenberg editions with the ids of PG-19, nothing masked: not "
        "comparable with published PG-19 numbers",
    ),
    "enwik8": Corpus(
        "stream",
        _ninety_five_five(
            "enwik8/enwik8.xz", "56a5a0e4485badded8c6306af47e1aaa934c29d7acfb5922061397294f2b8578"
        ),
        None,
        "90 / 5 / 5 million bytes in order, with its XML and markup",
    ),
    "enwik8-204": Corpus(
        "stream",
        _ninety_five_five(
            "enwik8/enwik8.xz", "56a5a0e4485badded8c6306af47e1aaa934c29d7acfb5922061397294f2b8578"
        ),
        None,
        "90 / 5 / 5 million bytes in order, line ends then left out as Transformer-XL's preparation "
        "does: 4,943,417 test symbols, not comparable with bits per byte of all of enwik8",
        without=b"\n",
    ),
    "text8": Corpus(
        "stream",
        _ninety_five_five(
            "text8/text8.xz", "bfb6e093ac1a6cfb966c786976e74358be1ad565bd7459817e0fd6b2d1dd9572"
        ),
        HubDataset("afmck/text8"),
        "90 / 5 / 5 million characters in order: a-z and space",
    ),
}


def data_directory(given: Path | None) -> Path | None:
    named = os.environ.get("HOLDOVER_DATA")
    return Path(given) if given is not None else Path(named) if named else None


def local_files(name: str, split: str, folder: Path | None) -> list[Path] | None:
    """The split's files, checked against their checksums; None if one of them is missing."""
    expected = CORPORA[name].splits.get(split, ())
    if folder is None or not expected:
        return None
    paths = [folder / file.path for file in expected]
    if not all(path.is_file() for path in paths):
        return None
    for path, file in zip(paths, expected, strict=True):
        checksum = sha256(path)
        if checksum != file.sha256:
            raise ValueError(
                f"{path} is not the file that {name} expects: its sha256 is {checksum} where "
                f"{file.sha256} was expected; download it again, or give the file's own path with "
                "--data to read it as it is."
            )
    return paths


def missing_sentence(name: str, split: str, folder: Path | None, reason: str | None) -> str:
    """Why the corpus cannot be read and which file would help; reason: the hub's error."""
    corpus = CORPORA[name]
    files = " and ".join(file.path for file in corpus.splits.get(split, ()))
    if not files:
        where = "it is not among the files of a data directory"
    elif folder is None:
        where = f"put {files} into a folder and name that folder with --data-dir or HOLDOVER_DATA"
    else:
        where = f"put {files} into the data directory {folder}"
    if corpus.hub is None:
        tried = "no dataset on the hub holds it unchanged"
    else:
        tried = f"the hub's {corpus.hub.name} was tried and could not be loaded ({reason})"
    return f"The {split} split of {name} is not here: {where}; {tried}."
