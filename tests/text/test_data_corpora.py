"""The named corpora: splits, checksums, and what is said where they are not."""

import hashlib
import io
import lzma
import tarfile
from dataclasses import replace

import datasets
import pytest

from holdover.text import corpora, hub
from holdover.text.corpora import CORPORA, SPLITS, Corpus, CorpusFile, HubDataset
from holdover.text.sources import Part, open_source


def texts(source):
    return [b"".join(document.read()).decode() for document in source.documents()]


def packed(folder, name, content):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(lzma.compress(content))
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


def archive(*members):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, text in members:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return content.getvalue()


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data directory of the same layout with small files."""
    monkeypatch.delenv("HOLDOVER_DATA", raising=False)
    wiki = CorpusFile(
        "wiki/train.xz", packed(tmp_path, "wiki/train.xz", b" \n = A = \n a \n = B = \n")
    )
    bytes100 = bytes(range(1, 101))
    spans = {"train": (0, 90), "valid": (90, 95), "test": (95, 100)}
    checksum = packed(tmp_path, "enwik8/enwik8.xz", bytes100)
    books = [
        packed(tmp_path, "pg19/0.xz", archive(("train/9.txt", b"nine"), ("train/1.txt", b"one"))),
        packed(tmp_path, "pg19/1.xz", archive(("train/5.txt", b"five"))),
    ]
    table = {
        "wikitext-2": Corpus(
            "stream", {"train": (wiki,)}, HubDataset("org/wiki", "two", lines=True), "a note"
        ),
        "enwik8": Corpus(
            "stream",
            {
                split: (CorpusFile("enwik8/enwik8.xz", checksum, span),)
                for split, span in spans.items()
            },
            None,
        ),
        "pg19": Corpus(
            "archive",
            {"train": tuple(CorpusFile(f"pg19/{n}.xz", book) for n, book in enumerate(books))},
            HubDataset("org/books"),
            "not comparable",
        ),
    }
    for name, corpus in table.items():
        monkeypatch.setitem(CORPORA, name, corpus)
    monkeypatch.setattr(hub, "_revision", lambda name: None)

    def offline(*arguments, **options):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    return tmp_path


def refusal(*arguments, **options):
    with pytest.raises((ValueError, OSError)) as said:
        open_source(*arguments, **options)
    sentence = str(said.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


def test_the_table():
    assert {"wikitext-2", "wikitext-103", "pg19", "enwik8", "text8"} <= set(CORPORA)
    for corpus in CORPORA.values():
        for split, files in corpus.splits.items():
            assert split in SPLITS
            for file in files:
                assert len(file.sha256) == 64 and not file.path.startswith("/")
    for name in ("enwik8", "text8"):
        spans = [CORPORA[name].splits[split][0].span for split in SPLITS]
        assert spans == [(0, 90_000_000), (90_000_000, 95_000_000), (95_000_000, 100_000_000)]
    assert "not comparable" in CORPORA["pg19"].note
    assert "train" not in CORPORA["wikitext-103"].splits


def test_a_stream_is_one_document(data):
    source = open_source("wikitext-2", data_dir=data)
    assert texts(source) == [" \n = A = \n a \n = B = \n"]
    assert (source.name, source.split, source.has_splits) == ("wikitext-2", "train", True)
    assert source.note == "a note"
    cut = open_source("wikitext-2", data_dir=data, new_document="^ = [^=]")
    assert texts(cut) == [" \n = A = \n a \n", " = B = \n"]
    assert cut.fingerprint() != source.fingerprint()


def test_byte_ranges_are_the_splits(data):
    parts = [
        open_source("enwik8", split, data_dir=data) for split in ("train", "validation", "test")
    ]
    assert [list(map(len, texts(part))) for part in parts] == [[90], [5], [5]]
    assert "".join(texts(part)[0] for part in parts).encode() == bytes(range(1, 101))
    assert [part.size() for part in parts] == [90, 5, 5]
    assert len({part.fingerprint() for part in parts}) == 3


def test_the_original_enwik8_has_no_line_ends(data, monkeypatch):
    """They are left out of the splits, which are cut before."""
    whole = CORPORA["enwik8"]
    monkeypatch.setitem(CORPORA, "enwik8-204", replace(whole, without=b"\n"))
    source = open_source("enwik8-204", data_dir=data)
    assert texts(source)[0].encode() == bytes(range(1, 91)).replace(b"\n", b"")
    assert source.size() is None
    assert source.fingerprint() != open_source("enwik8", data_dir=data).fingerprint()
    # A part that holds nothing else is no end of the text.
    part = Part("a", data / "text", without=b"\n")
    (data / "text").write_bytes(b"\n" * (1 << 21) + b"after")
    assert b"".join(part.pieces()) == b"after" and all(part.pieces())


def test_the_conventions_of_enwik8_are_told_apart():
    assert CORPORA["enwik8-204"].without == b"\n" and not CORPORA["enwik8"].without
    assert CORPORA["enwik8-204"].splits == CORPORA["enwik8"].splits
    assert "not comparable" in CORPORA["enwik8-204"].note


def test_books_come_in_the_archives_order(data):
    source = open_source("pg19", data_dir=data)
    found = [(document.name, b"".join(document.read())) for document in source.documents()]
    assert found == [("pg19/9", b"nine"), ("pg19/1", b"one"), ("pg19/5", b"five")]
    assert source.note == "not comparable"
    assert "one document per book" in refusal("pg19", data_dir=data, new_document="^x")


def test_the_environment_names_the_data_directory(data, monkeypatch):
    monkeypatch.setenv("HOLDOVER_DATA", str(data))
    assert len(texts(open_source("pg19"))) == 3


def test_another_checksum_is_refused(data):
    path = data / "wiki" / "train.xz"
    expected = CORPORA["wikitext-2"].splits["train"][0].sha256
    found = packed(data, "wiki/train.xz", b"something else")
    said = refusal("wikitext-2", data_dir=data)
    assert all(part in said for part in (str(path), expected, found))


def test_a_checksum_is_taken_once(data, monkeypatch):
    open_source("wikitext-2", data_dir=data)
    monkeypatch.setattr("holdover.tokenization.files.hashlib", None)
    open_source("wikitext-2", data_dir=data)


def test_missing_files_are_named(data):
    assert "put enwik8/enwik8.xz into a folder" in refusal("enwik8")
    (data / "pg19" / "1.xz").unlink()
    said = refusal("pg19", data_dir=data)
    assert f"put pg19/0.xz and pg19/1.xz into the data directory {data}" in said
    assert "org/books was tried and could not be loaded (no network)" in said
    assert "not among the files" in refusal("wikitext-2", "test", data_dir=data)
    assert "train, valid, test" in refusal("enwik8", "dev", data_dir=data)


def test_the_hub_stands_in_and_its_lines_are_the_file_again(data, monkeypatch):
    asked = []

    def load(name, config, *, split, streaming, revision):
        asked.append((name, config, split, streaming))
        rows = ["", " = A = \n", " a \n", " = B = \n"]
        return datasets.Dataset.from_dict({"text": rows}).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = open_source("wikitext-2", "valid")
    assert texts(source) == texts(open_source("wikitext-2", data_dir=data))
    assert asked == [("org/wiki", "two", "validation", True)]
    assert source.note is None and source.name == "wikitext-2"
    assert len(texts(open_source("wikitext-2", "valid", new_document="^ = [^=]"))) == 2
    assert len(texts(open_source("pg19", "valid"))) == 4


def test_the_data_directory_given_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDOVER_DATA", "/elsewhere")
    assert corpora.data_directory(tmp_path) == tmp_path
    monkeypatch.delenv("HOLDOVER_DATA")
    assert corpora.data_directory(None) is None
