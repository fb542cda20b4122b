"""The token cache: built once, whole or not at all, and small in memory."""

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console

from fast_tokenizers import byte_level, metaspace, ragged_text
from holdover.text import progress
from holdover.text import token_cache as cache
from holdover.text.sources import open_source
from holdover.text.token_cache import tokenise
from holdover.tokenization.encoders import HFEncoder, open_encoder
from scripts import SUPPORT
from streams import Listed


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=60)


def printed(console):
    return console.file.getvalue()


def make(folder, *texts, mark="1", tokenizer="bytes", **options):
    return tokenise(Listed(*texts, mark=mark), open_encoder(tokenizer), cache_dir=folder, **options)


def folders(root):
    return sorted(path.name for path in root.iterdir())


def test_documents_lie_one_after_another(tmp_path):
    tokens = make(tmp_path, "one two\n", "", "drei\n\nvier é")
    assert bytes(tokens.ids.tolist()).decode() == "one two\ndrei\n\nvier é"
    assert tokens.ids.dtype == np.uint8 and isinstance(tokens.ids, np.memmap)
    assert tokens.bounds.tolist() == [0, 8, 21] and tokens.documents == 2
    assert {name: numbers.tolist() for name, numbers in tokens.counts.items()} == {
        "bytes": [8, 13],
        "characters": [8, 12],
        "words": [2, 3],
        "lines": [1, 2],
    }
    assert tokens.scored is None
    about = tokens.about
    assert (about["source"], about["split"], about["sha256"]) == ("listed", "train", "1")
    assert (about["documents"], about["tokens"], about["dropped"]) == (2, 21, 1)
    assert about["tokenizer"] == "bytes" and len(about["tokenizer_sha256"]) == 16
    json.dumps(about)


def test_the_second_time_nothing_is_encoded(tmp_path, console):
    source = Listed("a text")
    for _ in range(2):
        tokens = tokenise(source, open_encoder("bytes"), cache_dir=tmp_path, console=console)
    assert source.reads == 1 and len(tokens) == 6
    first, second = printed(console).splitlines()
    assert first.startswith("Encoded listed: 0.0 MB, 6 tokens")
    assert second == "listed: 6 tokens, from the cache."


def test_the_key_is_what_decides_the_ids(tmp_path):
    encoder = HFEncoder(metaspace(), "m")
    for mark, other in [("1", {}), ("2", {}), ("1", {"errors": "replace"})]:
        make(tmp_path, "a", mark=mark, **other)
    tokenise(Listed("a"), encoder, cache_dir=tmp_path)
    tokenise(Listed("a"), encoder, cache_dir=tmp_path, bos=True)
    assert len(folders(tmp_path)) == 5


def test_the_notes_and_names_are_those_of_the_source_opened(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the same text")
        source = open_source(str(tmp_path / name))
        tokens = tokenise(source, open_encoder("bytes"), cache_dir=tmp_path / "cache")
        assert tokens.about["source"] == name and "note" not in tokens.about
    assert len(folders(tmp_path / "cache")) == 1
    source = Listed("noted")
    source.note = "not comparable"
    tokens = tokenise(source, open_encoder("bytes"), cache_dir=tmp_path / "cache")
    assert tokens.about["note"] == "not comparable"


def test_a_token_before_every_document(tmp_path):
    encoder = HFEncoder(metaspace(), "m")
    texts = ["the cat", "  ", ("a mat sat", ((2, 5),))]
    plain = tokenise(Listed(*texts), encoder, cache_dir=tmp_path)
    tokens = tokenise(Listed(*texts), encoder, cache_dir=tmp_path, bos=True)
    assert len(tokens) == len(plain) + tokens.documents
    for start, stop, count in zip(
        tokens.bounds[:-1], tokens.bounds[1:], tokens.counts["bytes"], strict=True
    ):
        assert tokens.ids[start] == encoder.bos
        # What a shortened document counts does not count that token's text.
        assert tokens.part(start, stop - 1).counts["bytes"][0] < count
    with pytest.raises(ValueError, match="tokenizer bytes has no token .* leave --bos out.$"):
        make(tmp_path, "a", bos=True)


def test_scored_tokens_are_kept_beside(tmp_path):
    tokens = make(tmp_path, "abc", ("defg", ((1, 3),)), "hi", ("j", ()))
    assert tokens.scored.dtype == np.bool_
    assert tokens.scored.astype(int).tolist() == [1, 1, 1, 0, 1, 1, 0, 1, 1, 0]
    assert tokens.targets(3, 7).tolist() == [-100, ord("e"), ord("f"), -100]


def test_parts_of_tokens_count_what_they_hold(tmp_path, monkeypatch):
    text = ragged_text(1, 200)
    encoder = HFEncoder(metaspace(), "m")
    for each in (open_encoder("bytes"), encoder):
        tokens = tokenise(Listed(text), each, cache_dir=tmp_path)
        whole = tokens.part(0, len(tokens) - 5).counts
        monkeypatch.setattr("holdover.text.tokens.COUNTED", 7)
        assert tokens.part(0, len(tokens) - 5).counts == whole
        monkeypatch.undo()
        assert len(tokens.part(3, 3)) == tokens.part(0, 0).documents == 0


def test_nothing_to_predict_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"listed gives no tokens .*\.$"):
        make(tmp_path, "", "")
    assert folders(tmp_path) == []


@pytest.mark.parametrize("name", ["ids.bin", "about.json", "bounds.npy", "counts.npy"])
@pytest.mark.parametrize("damage", ["shortened", "removed"])
def test_a_damaged_folder_is_made_anew(name, damage, tmp_path, console):
    make(tmp_path, "some text")
    (folder,) = tmp_path.iterdir()
    path = folder / name
    if damage == "removed":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - 1)
    tokens = make(tmp_path, "some text", console=console)
    assert bytes(tokens.ids.tolist()) == b"some text"
    assert "damaged" in printed(console).splitlines()[0]
    make(tmp_path, "some text", console=console)
    assert printed(console).splitlines()[-1].endswith("from the cache.")


def test_the_second_of_two_builders_uses_the_firsts(tmp_path):
    class Raced(Listed):
        def documents(self):
            yield from super().documents()
            make(tmp_path, "a text")
            self.first = next(tmp_path.glob("[!.]*")).stat().st_ino

    source = Raced("a text")
    tokens = tokenise(source, open_encoder("bytes"), cache_dir=tmp_path)
    assert len(tokens) == 6
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_ino == source.first


def test_a_failing_source_leaves_nothing(tmp_path):
    class Failing(Listed):
        def documents(self):
            yield from super().documents()
            raise OSError("the disk of the source is gone")

    with pytest.raises(OSError, match="^the disk of the source is gone$"):
        tokenise(Failing("text"), open_encoder("bytes"), cache_dir=tmp_path)
    assert folders(tmp_path) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cache._Writer, "_open", lambda self, name: Full())
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\): .*\.$"):
        make(tmp_path, "text")
    assert folders(tmp_path) == []


def test_a_cache_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"The token cache .* cannot be written .*HOLDOVER_CACHE\.$"):
        make(tmp_path / "file" / "cache", "text")


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDOVER_CACHE", str(tmp_path / "named"))
    make(None, "text")
    assert len(folders(tmp_path / "named")) == 1
    monkeypatch.delenv("HOLDOVER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    make(None, "text")
    assert len(folders(tmp_path / ".cache" / "holdover" / "tokens")) == 1


def test_lines_now_and_then_where_there_is_no_terminal(tmp_path, console, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    make(tmp_path, "one", "two", console=console)
    lines = printed(console).splitlines()
    assert len(lines) >= 3 and all(line.startswith("Encoding listed") for line in lines[:-1])


def test_a_bar_on_a_terminal(tmp_path):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    make(tmp_path, "one", "two", console=terminal)
    assert "Encoding listed" in printed(terminal) and "Encoded listed" in printed(terminal)


SLOW_BUILD = """
import sys, time
from pathlib import Path
from holdover.text.token_cache import tokenise
from holdover.tokenization.encoders import open_encoder
from streams import Listed

class Slow(Listed):
    def documents(self):
        yield from super().documents()
        print("half-way", flush=True)
        time.sleep(60)

tokenise(Slow("a text" * 100_000), open_encoder("bytes"), cache_dir=Path(sys.argv[1]))
"""


def test_a_killed_build_is_never_trusted(tmp_path):
    call = [sys.executable, "-c", SLOW_BUILD, str(tmp_path)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen(call, stdout=subprocess.PIPE, env=environment) as building:
        assert building.stdout is not None and b"half-way" in building.stdout.readline()
        (left,) = folders(tmp_path)
        assert left.startswith(".partial-")
        # Alive: its folder is not touched.
        make(tmp_path, "another", mark="2")
        assert left in folders(tmp_path)
        building.send_signal(signal.SIGKILL)
    assert left in folders(tmp_path)
    tokens = make(tmp_path, "a text", mark="1")
    assert len(tokens) == 6
    assert left not in folders(tmp_path) and len(folders(tmp_path)) == 2


def test_other_machines_remains_go_after_a_day(tmp_path):
    young, old = (tmp_path / f".partial-elsewhere-7-{n}" for n in ("aa", "bb"))
    for folder in (young, old):
        folder.mkdir()
    os.utime(old, (time.time() - 2 * cache.ABANDONED_AFTER,) * 2)
    make(tmp_path, "text")
    assert young.exists() and not old.exists()


MEASURED = """
import resource, sys
from pathlib import Path
from holdover.text.sources import open_source
from holdover.text.token_cache import tokenise
from holdover.tokenization.encoders import open_encoder

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

folder, encoder = Path(sys.argv[1]), open_encoder(sys.argv[2])
for name in ("small.txt", "large.txt"):
    before = peak()
    tokens = tokenise(open_source(str(folder / name)), encoder, cache_dir=folder / "cache")
    encoded = peak() - before
    tokens.part(0, len(tokens) * 9 // 10)
print(len(tokens), encoded, peak() - before)
"""


@pytest.mark.parametrize(("tokenizer", "megabytes"), [("bytes", 60), ("byte-level", 4)])
def test_memory_does_not_grow_with_the_text(tokenizer, megabytes, tmp_path):
    """Encoding and holding out an end, after a small text has filled what is filled once."""
    line = "The text goes on and on, and nothing of it is kept in memory: été.\n"
    for name, size in [("small.txt", 2), ("large.txt", megabytes)]:
        with open(tmp_path / name, "w") as file:
            for _ in range(size):
                file.write(line * (1_000_000 // len(line.encode())))
    if tokenizer != "bytes":
        tokenizer = str(tmp_path / "tokenizer")
        HFEncoder(byte_level(corpus=line * 9), "b").save(tokenizer)
    call = [sys.executable, "-c", MEASURED, str(tmp_path), tokenizer]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    tokens, encoding, holding_out = map(int, done.stdout.split())
    assert tokens > megabytes * 1e5
    assert encoding < 25e6
    # The mapped ids that were looked at count as memory too, though the system may take them back.
    assert holding_out < 25e6 + 2 * tokens
    shutil.rmtree(tmp_path)


def test_whether_a_tokenizer_gives_back_its_text_is_known(tmp_path):
    """Found by comparing bytes when the text is encoded, so that parts of it know it too."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from holdover.tokenization.encoders import HFEncoder

    def encoder(normalizer):
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        made = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder, made.normalizer = decoders.ByteLevel(), normalizer
        return HFEncoder(PreTrainedTokenizerFast(tokenizer_object=made), "tiny")

    path = tmp_path / "text.txt"
    path.write_text("Some Words é " * 9000)
    for normalizer, exact in ((None, True), (normalizers.Lowercase(), False)):
        tokens = tokenise(open_source(str(path)), encoder(normalizer), cache_dir=tmp_path / "c")
        assert tokens.about["tokenizer_keeps_bytes"] is exact
        assert tokens.part(0, 50).about["tokenizer_keeps_bytes"] is exact
