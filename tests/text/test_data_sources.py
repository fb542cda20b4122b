"""Sources: what a name or a path becomes, and every refusal in one sentence."""

import gzip
import json
import lzma
import sys

import datasets
import pytest

from holdover.text import cutting, hub
from holdover.text.sources import open_source
from holdover.tokenization import files


def texts(source):
    return [b"".join(document.read()).decode() for document in source.documents()]


def names(source):
    return [document.name for document in source.documents()]


def refusal(spec, *arguments, **options):
    """The sentence with which it is not opened, or not read."""
    with pytest.raises((ValueError, OSError)) as said:
        texts(open_source(str(spec), *arguments, **options))
    sentence = str(said.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence


def jsonl(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".txt", ".log", "", ".txt.xz", ".TXT.GZ"])
def test_a_text_file_is_one_document(suffix, tmp_path):
    content = "Él vino.\n" * 300_000
    path = tmp_path / f"novel{suffix}"
    opener = {"xz": lzma.open, "GZ": gzip.open}.get(suffix.rpartition(".")[2], open)
    with opener(path, "wb") as file:
        file.write(content.encode())
    source = open_source(str(path))
    assert texts(source) == [content]
    assert (source.name, source.split, source.has_splits) == (path.name, "train", False)
    assert source.size() == (None if suffix.lower().endswith(("xz", "gz")) else path.stat().st_size)
    (document,) = source.documents()
    assert max(map(len, document.read())) <= files.PIECE


def test_a_split_is_not_asked_of_a_text(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    assert texts(open_source(str(tmp_path / "a.txt"), "test")) == ["text"]


def test_a_folder_is_read_in_order_of_names(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/y.MD", "c.csv", ".hidden/d.txt", ".e.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"in {name}")
    source = open_source(str(tmp_path))
    assert names(source) == ["a/y.MD", "a/z.txt", "b.txt"]
    assert texts(source) == ["in a/y.MD", "in a/z.txt", "in b.txt"]
    assert (source.name, source.has_splits) == (tmp_path.name, False)
    assert source.size() == sum(len(text) for text in texts(source))


def test_a_folder_with_splits(tmp_path):
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.txt").write_text(split)
    (tmp_path / "about.md").write_text("not read")
    for split, expected in [("train", "train"), ("valid", "validation"), ("validation",) * 2]:
        source = open_source(str(tmp_path), split)
        assert texts(source) == [expected] and source.has_splits
    assert "splits train, validation but not test" in refusal(tmp_path, "test")


WIKI = " \n = One = \n\n text \n = = Part = = \n more\n = Two = \n end"


def test_lines_that_begin_documents(tmp_path, monkeypatch):
    path = tmp_path / "wiki.txt"
    path.write_text(WIKI)
    source = open_source(str(path), new_document="^ = [^=]")
    for piece in (1, 5, 1 << 20):
        monkeypatch.setattr(files, "PIECE", piece)
        first, second = texts(source)
        assert first + second == WIKI and second == " = Two = \n end"
    assert names(source) == ["wiki.txt#1", "wiki.txt#2"]
    path.write_text("preface\n" + WIKI)
    assert len(texts(source)) == 3
    path.write_text("no match at all\n" * 3)
    assert len(texts(source)) == 1


def test_a_line_without_end_is_not_gathered(tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "LONGEST_MATCHED", 64)
    monkeypatch.setattr(cutting, "GATHERED", 64)
    monkeypatch.setattr(files, "PIECE", 32)
    path = tmp_path / "long.txt"
    path.write_text("=x" * 500 + "\n=y\n")
    source = open_source(str(path), new_document="^=")
    assert texts(source) == ["=x" * 500 + "\n", "=y\n"]
    sizes = [len(piece) for document in source.documents() for piece in document.read()]
    assert max(sizes) <= 128


def test_documents_that_are_not_read_are_skipped(tmp_path):
    path = tmp_path / "wiki.txt"
    path.write_text(WIKI)
    last = None
    for document in open_source(str(path), new_document="^ = [^=]").documents():
        last = document
    assert last is not None and last.name == "wiki.txt#2"


def test_jsonl(tmp_path):
    rows = [
        {"text": "one"},
        {"text": "two", "scored": [[0, 1], [2, 3]]},
        {"text": "", "scored": []},
    ]
    path = jsonl(tmp_path / "rows.jsonl", rows[0], "", *rows[1:])
    packed = tmp_path / "rows.jsonl.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    for each in (path, packed):
        source = open_source(str(each))
        assert texts(source) == ["one", "two", ""]
        scored = [document.scored for document in source.documents()]
        assert scored == [None, ((0, 1), (2, 3)), ()]
        assert (source.name, source.has_splits) == (each.name, False)
    path = jsonl(tmp_path / "other.jsonl", {"story": "mine"})
    assert texts(open_source(str(path), text_field="story")) == ["mine"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "rows.jsonl, line 2 is not JSON"),
        ("\ufeff", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('["text"]', "line 2 holds a JSON list"),
        ({"story": "x", "id": 3}, "line 2 has no text in a field 'text': its fields are id, story"),
        ({"text": None}, "line 2 has no text"),
        ({"text": "abc", "scored": [[0, 4]]}, "malformed field 'scored'"),
        ({"text": "abc", "scored": [[2, 1]]}, "stop <= 3"),
        ({"text": "abc", "scored": [0, 1]}, "malformed"),
        ({"text": "abc", "scored": [[True, 2]]}, "malformed"),
        ({"text": "abc", "scored": "all"}, "malformed"),
    ],
)
def test_wrong_rows_are_named(row, said, tmp_path):
    path = jsonl(tmp_path / "rows.jsonl", {"text": "fine"}, row)
    assert said in refusal(path)


def test_what_holds_nothing_is_refused(tmp_path):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "empty.txt.xz").write_bytes(lzma.compress(b""))
    (tmp_path / "empty.jsonl").write_text("\n\n")
    for name in ("empty.txt", "empty.txt.xz"):
        for errors in ("strict", "replace"):
            assert f"{name} is empty" in refusal(tmp_path / name, errors=errors)
    assert "has no rows" in refusal(tmp_path / "empty.jsonl")
    (tmp_path / "folder").mkdir()
    assert "has no texts" in refusal(tmp_path / "folder")
    (tmp_path / "folder" / "a.txt").touch()
    assert "only empty texts" in refusal(tmp_path / "folder")


def test_binary_files_are_refused(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"text" * 10 + b"\0")
    assert "byte 40 is NUL" in refusal(tmp_path / "a.bin")
    assert texts(open_source(str(tmp_path / "a.bin"), errors="replace")) == ["text" * 10 + "\0"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_bytes(b"\0")
    assert "a.txt looks binary" in refusal(tmp_path / "folder")


def test_damaged_compression_is_named(tmp_path):
    whole = lzma.compress(b"text " * 100_000)
    (tmp_path / "a.txt.xz").write_bytes(whole[:-20])
    assert "a.txt.xz is not a complete .xz file" in refusal(tmp_path / "a.txt.xz")
    (tmp_path / "a.txt.gz").write_bytes(b"not gzip at all")
    assert "a.txt.gz is not a complete .gz file" in refusal(tmp_path / "a.txt.gz")


def test_the_pattern_must_be_one_and_fit(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    assert "is not a regular expression" in refusal(tmp_path / "a.txt", new_document="(")
    path = jsonl(tmp_path / "a.jsonl", {"text": "a"})
    assert "already has one document per line" in refusal(path, new_document="^a")


def test_fingerprints_tell_content_and_cut(tmp_path):
    (tmp_path / "a.txt").write_text(WIKI)
    (tmp_path / "b.txt").write_text(WIKI)
    (tmp_path / "c.txt").write_text(WIKI + "!")
    row = json.dumps({"text": "a", "b": "c"})
    for name in ("a.jsonl", "row.txt"):
        (tmp_path / name).write_text(row)

    def of(name, **options):
        return open_source(str(tmp_path / name), **options).fingerprint()

    assert of("a.txt") == of("b.txt") == files.sha256(tmp_path / "a.txt")
    all_of_them = [
        of("a.txt"),
        of("c.txt"),
        of("a.txt", new_document="^ = [^=]"),
        of("a.txt", new_document="^ = "),
        of("a.jsonl"),
        of("a.jsonl", text_field="b"),
        of("row.txt"),
        of("."),
    ]
    assert len(set(all_of_them)) == len(all_of_them)


def test_names_that_are_nothing():
    said = refusal("wikitxt-2")
    assert "did you mean wikitext-2?" in said and "pg19" in said and "ORG/NAME" in said
    assert "named like a file" in refusal("books/novel.txt")
    assert "neither a file" in refusal("")


@pytest.fixture
def fake_hub(monkeypatch):
    asked = []
    rows = {
        "train": [{"text": "one", "n": 1}, {"text": "two", "n": 2}],
        "validation": [{"text": "v"}],
    }

    def load(name, config, *, split, streaming, revision):
        asked.append((name, config, split, revision))
        if split not in rows:
            raise ValueError(f"Bad split: {split}.\nAvailable splits: train")
        return datasets.Dataset.from_list(rows[split]).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(hub, "_revision", lambda name: None)
    return asked


def test_datasets_of_the_hub(fake_hub):
    source = open_source("some/books:old")
    assert texts(source) == ["one", "two"] and names(source)[1] == "some/books:old, row 2"
    assert (source.name, source.has_splits, source.size()) == ("some/books:old", True, None)
    assert texts(open_source("some/books", "valid")) == ["v"]
    assert fake_hub == [
        ("some/books", "old", "train", None),
        ("some/books", None, "validation", None),
    ]
    said = refusal("some/books", text_field="story")
    assert "'story'" in said and "text, n" in said
    assert "(Bad split: test)" in refusal("some/books", "test")


def test_hub_fingerprints(fake_hub, monkeypatch):
    by_content = open_source("some/books").fingerprint()
    assert by_content == open_source("some/books").fingerprint()
    assert by_content != open_source("some/books", "valid").fingerprint()
    monkeypatch.setattr(hub, "_revision", lambda name: "abc")
    source = open_source("some/books")
    assert fake_hub[-1] == ("some/books", None, "train", "abc")
    assert source.fingerprint() != by_content


def test_a_dataset_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setattr(hub, "_revision", lambda name: None)

    def offline(*arguments, **options):
        raise ConnectionError("could not reach the hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    assert "could be loaded (could not reach the hub)." in refusal("some/books")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'holdover[data]'" in refusal("some/books")


def test_a_path_wins_over_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enwik8").write_text("mine")
    assert texts(open_source("enwik8")) == ["mine"]
