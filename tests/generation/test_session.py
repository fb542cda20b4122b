"""A session reads and writes in any order, and a saved one goes on as if it had never stopped."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch

import holdover
from fast_tokenizers import byte_level, metaspace, ragged_text
from holdover import Session
from holdover.generation import session as session_module
from holdover.generation.session_file import read_session
from holdover.generation.writer import Sampler, Writer
from holdover.tokenization.encoders import ByteEncoder, HFEncoder
from scripts import SUPPORT
from tiny import attach, build

CARRIES = {
    "pooled": {},
    "pooled-overlap": {"overlap": 3},
    "tokens": {"carry": "tokens", "slots": 2},
    "tokens-overlap": {"carry": "tokens", "slots": 2, "overlap": 3},
    "none": {"carry": "none"},
    "none-overlap": {"carry": "none", "overlap": 3},
}
CHOOSING = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.9, "top_k": 50, "top_p": 0.95},
}
TEXT = (
    "Es war spät, als K. ankam. Das Dorf lag in tiefem Schnee; vom Schloßberg war nichts zu sehen."
)


def model_of(name="gpt2", vocabulary=256, dtype=torch.float64, **options):
    return attach(build(name, vocab_size=vocabulary).to(dtype), **options).to(dtype)


def session_of(name="gpt2", seed=0, **options):
    return Session(model_of(name, **options), ByteEncoder(), seed=seed)


@pytest.fixture
def choices(monkeypatch):
    """Every id that any writer chooses."""
    chosen = []
    choose = Writer.next_token

    def noted(writer):
        chosen.append(choose(writer))
        return chosen[-1]

    monkeypatch.setattr(Writer, "next_token", noted)
    return chosen


@pytest.fixture
def readings(monkeypatch):
    """Every id that any writer is given to read."""
    given = []
    read = Writer.read

    def noted(writer, ids):
        given.extend(ids[0].tolist())
        read(writer, ids)

    monkeypatch.setattr(Writer, "read", noted)
    return given


def cases():
    return [
        (f"{name}-{carry}-{way}", name, CARRIES[carry], CHOOSING[way])
        for name in ("gpt2", "opt", "llama")
        for carry in CARRIES
        for way in CHOOSING
    ]


def continue_all(folder):
    """In a process of its own: every saved session, thirty tokens on."""
    texts = {}
    for label, name, options, _ in cases():
        session = Session.load(
            Path(folder, f"{label}.hold"), model_of(name, **options), ByteEncoder()
        )
        texts[label] = session.write(30)
        session.save(Path(folder, f"{label}.continued"))
    print(json.dumps(texts))


def in_a_new_process(call):
    folders = [str(SUPPORT), str(Path(__file__).parent)]
    script = f"import sys; sys.path[:0] = {folders}; {call}"
    # Tests run side by side: more threads than cores would only wait for each other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_a_new_process_writes_what_the_old_one_would_have(tmp_path):
    draw, expected, ends = Random(5), {}, {}
    for label, name, options, choosing in cases():
        session = session_of(name, seed=draw.randrange(99), **options)
        session.read(TEXT[: draw.randint(1, len(TEXT))])
        session.write(draw.randint(0, 25), **choosing)
        if draw.random() < 0.3:
            session.read("und")
        # The settings are the session's now, also where nothing has been written since.
        session.write(1, **choosing)
        session.save(tmp_path / f"{label}.hold")
        expected[label] = session.write(30)
        ends[label] = session
    found = in_a_new_process(f"import test_session; test_session.continue_all({str(tmp_path)!r})")
    assert found == expected
    for label, session in ends.items():
        session.save(tmp_path / "end")
        here = read_session(tmp_path / "end").place
        there = read_session(tmp_path / f"{label}.continued").place
        assert (here.open, here.unread, here.position) == (there.open, there.unread, there.position)
        assert torch.equal(here.random, there.random)
        assert (here.unfinished, here.sampling) == (there.unfinished, there.sampling)
        if here.state is not None:
            for name, tensor in here.state.tensors.items():
                # Some models do parts of a layer in float32.
                torch.testing.assert_close(there.state.tensors[name], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", CARRIES.values(), ids=CARRIES.keys())
@pytest.mark.quick_sampled(3)
def test_saved_at_every_token_of_three_windows(options, tmp_path):
    session = session_of(**options)
    session.read("K.")
    pieces = []
    for _ in range(27):
        session.save(tmp_path / "s")
        session = Session.load(tmp_path / "s", session.model, session.encoder)
        pieces.append(session.write(1))
    whole = session_of(**options)
    whole.read("K.")
    assert "".join(pieces) == whole.write(27)


def test_in_single_precision_a_difference_is_a_tie(tmp_path, choices):
    session = session_of(dtype=torch.float32)
    session.read(TEXT)
    session.write(13, temperature=0)
    session.save(tmp_path / "s")
    session.write(60)
    expected = choices[-60:]
    again = Session.load(tmp_path / "s", session.model, session.encoder)
    for token in expected:
        again.write(1)
        if choices[-1] != token:
            logits = again._ready().logits[0]
            assert logits[choices[-1]] - logits[token] < 1e-5
            return


def test_saved_within_a_character(tmp_path, monkeypatch):
    written = "Ein ⛄ im Schnee: ❄️!".encode()
    following = iter(written)

    def chosen(sampler, logits):
        return torch.tensor([next(following)])

    monkeypatch.setattr(Sampler, "__call__", chosen)
    session = session_of()
    session.read("K.")
    pieces, cut = [], 0
    for _ in written:
        pieces.append(session.write(1))
        session.save(tmp_path / "s")
        cut += bool(read_session(tmp_path / "s").place.unfinished)
        session = Session.load(tmp_path / "s", session.model, session.encoder)
    assert "".join(pieces).encode() == written
    assert cut == 2 + 2 + 2
    following = iter("⛄".encode()[:2] + b"!\xe2")
    assert session.write(2) == ""
    assert session.write(1) == "\ufffd!"
    session.write(1)
    session.read("Schnee")
    following = iter(b".")
    assert session.write(1) == "."


@pytest.mark.parametrize("options", CARRIES.values(), ids=CARRIES.keys())
@pytest.mark.quick_sampled(2)
def test_any_order_is_one_writer_fed_the_same(options, choices):
    model = model_of(**options)
    session, writer = Session(model, ByteEncoder(), seed=3), Writer(model)
    generator = torch.Generator().manual_seed(3)
    draw, count = Random(1), 0
    for turn in range(20):
        if turn % 3 == 0 or draw.random() < 0.3:
            at = draw.randrange(len(TEXT) - 1)
            text = TEXT[at : at + draw.randint(1, 40)]
            count += session.read(text)
            writer.read(torch.tensor([list(text.encode())]))
            continue
        number, way = draw.randint(1, 12), {"temperature": 0.9, "top_k": 50, "top_p": 0.95}
        way |= draw.choice([{}, {"temperature": 0}, {"top_k": 0}, {"top_p": 1}])
        choices.clear()
        session.write(number, **way)
        said = list(choices)
        writer.sampler = Sampler(
            way["temperature"], way["top_k"] or None, way["top_p"], generator=generator
        )
        assert [writer.next_token() for _ in range(number)] == said
        count += number
    assert session.position == count
    own = session._ready()
    assert (session.windows, session.state_bytes) == (own.windows, own.state.nbytes)
    assert own.windows == writer.windows > 20
    assert torch.cat(own.window.read, 1)[0, options.get("overlap", 0) :].tolist() == [
        *session._at.open
    ]


@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_the_pieces_of_a_file_are_the_whole(make, tmp_path, readings, monkeypatch):
    monkeypatch.setattr(session_module, "WINDOWS_AT_ONCE", 2)
    tokenizer, text = make(), ragged_text(3, words=300)
    path = tmp_path / "book.txt"
    path.write_bytes(text.encode())
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    model = model_of(vocabulary=720)
    session = Session(model, HFEncoder(tokenizer, "tokenizer", chunk=50))
    assert session.read(path) == len(whole) == session.position
    assert readings == whole
    (file,) = session.files
    assert file.finished and file.tokens == len(whole)
    if make is byte_level:
        assert file.bytes == file.size


@pytest.mark.quick
def test_a_file_is_continued_where_it_was_left(tmp_path, readings, monkeypatch):
    monkeypatch.setattr(session_module, "WINDOWS_AT_ONCE", 2)
    tokenizer, text = byte_level(), ragged_text(3, words=300)
    path = tmp_path / "book.txt"
    path.write_bytes(text.encode())
    whole = tokenizer(text, add_special_tokens=False)["input_ids"]
    model = model_of(vocabulary=720)
    first = Session(model, tokenizer)
    for number, _ in enumerate(first.read_on(path)):
        if number == 7:
            break
    first.write(3)
    first.save(tmp_path / "s")
    read_before = len(readings)
    tokenizer("The tokenizer now cuts what it is given.", truncation=True, max_length=4)
    second = Session.load(tmp_path / "s", model, tokenizer)
    del readings[read_before:]  # the open window was read again
    second.read(path)
    assert readings == whole
    assert second.position == len(whole) + 3
    with path.open("a") as file:
        file.write("more")
    second.read(path)  # another text now, and read from its beginning
    assert [file.finished for file in second.files] == [True, True]


def test_a_large_file_goes_through_in_small_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(session_module, "WINDOWS_AT_ONCE", 4)
    path = tmp_path / "book.txt"
    path.write_text(TEXT * 5)
    session = session_of(overlap=3)
    come = [file.tokens for file in session.read_on(path)]
    assert max(b - a for a, b in pairwise(come)) == 4 * (9 - 3)
    assert come[-1] == len((TEXT * 5).encode()) == session.files[0].bytes


def test_a_changed_file_is_not_continued(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(TEXT * 5)
    session = session_of()
    next(session.read_on(path))
    position = session.position
    path.write_text(TEXT * 6)
    with pytest.raises(ValueError, match=r"book.txt has changed since .* under another name"):
        session.read(path)
    assert session.position == position
    with pytest.raises(FileNotFoundError, match="no text file"):
        session.read(tmp_path / "missing.txt")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        session.read(tmp_path / "empty")
    (tmp_path / "other").write_bytes(b"snow \xff snow")
    session.read(tmp_path / "other", errors="replace")
    assert session.files[-1].finished


@pytest.mark.parametrize("place", [1, 2, 3, 6])
@pytest.mark.quick
def test_a_step_that_is_interrupted_has_not_been(place):
    model = model_of(overlap=3)
    session, twin = (Session(model, ByteEncoder()) for _ in range(2))
    calls = 0

    def interrupt(*call):
        nonlocal calls
        calls += 1
        if calls == place:
            raise KeyboardInterrupt

    def interrupted(step):
        nonlocal calls
        calls = 0
        hook = model.hooks.layers[1].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            step()
        hook.remove()

    for one in (session, twin):
        one.read(TEXT)
        one.write(5)
    interrupted(lambda: session.read("Schnee " * 9))
    assert session.position == twin.position
    for one in (session, twin):
        one.read("Schnee " * 9)
    pieces = []
    interrupted(lambda: pieces.extend(session.stream(12)))
    # The tokens before the interruption stay.
    rest = twin.position + 12 - session.position
    assert 12 - place <= rest <= 12
    assert "".join(pieces) + session.write(rest) == twin.write(12)
    assert session.write(9) == twin.write(9)


def test_pieces_are_whole_characters_and_stop_ends_them(monkeypatch):
    following = iter("Schnee ⛄ fällt. Viel Schnee.".encode())
    monkeypatch.setattr(
        Sampler, "__call__", lambda sampler, logits: torch.tensor([next(following)])
    )
    session = session_of()
    session.read("K.")
    assert list(session.stream(9)) == [*"Schnee "]
    assert list(session.stream(2)) == ["⛄", " "]
    assert session.write(99, stop="fällt.") == "fällt."
    assert session.write(99, stop=["nie", "Viel S"]) == " Viel S"
    assert session.write(3) == "chn"
    with pytest.raises(ValueError, match="empty text"):
        session.write(3, stop=["a", ""])


def test_in_training_mode_nothing_is_read_written_or_saved(tmp_path):
    session = session_of()
    session.read(TEXT)
    session.write(2)
    stream = session.stream(5)
    next(stream)
    position = session.position
    (tmp_path / "book.txt").write_text(TEXT)
    session.model.train()
    for step in (
        lambda: session.save(tmp_path / "s"),
        lambda: session.write(1),
        lambda: session.stream(1),
        lambda: session.read("K."),
        lambda: session.read(tmp_path / "book.txt"),
        lambda: next(stream),
    ):
        with pytest.raises(ValueError, match=r"training mode.*model\.eval\(\) first"):
            step()
    assert session.position == position and not (tmp_path / "s").exists()
    session.model.eval()
    twin = session_of()
    twin.read(TEXT)
    twin.write(position - len(TEXT.encode()))
    assert session.write(20) == twin.write(20)
    session.save(tmp_path / "s")
    Session.load(tmp_path / "s", session.model, session.encoder)


def test_bytes_that_are_no_text(tmp_path, readings):
    path = tmp_path / "other"
    path.write_bytes(b"snow \xff snow")
    session = session_of()
    session.read(path)  # a byte encoder reads them as they are
    assert bytes(readings) == path.read_bytes()
    other = Session(model_of(vocabulary=720), byte_level())
    with pytest.raises(ValueError, match="not valid UTF-8"):
        other.read(path)
    assert other.read(path, errors="replace") > 5
    for one in (session, other):
        for text in (path, "snow"):
            with pytest.raises(ValueError, match=r'errors=.ignore. .* "strict" .* "replace"'):
                one.read(text, errors="ignore")


def test_names_are_kept_to_be_found_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "bytes").mkdir()
    model, folder = model_of(), str(tmp_path / "mine")
    for name, kept in (("mine", folder), ("./mine/", folder), ("org/name", "org/name")):
        session = Session(model, ByteEncoder(), model_name=name, tokenizer_name=name)
        assert (session.model_name, session.tokenizer_name) == (kept, kept)
    assert Session(model, ByteEncoder(), tokenizer_name="bytes").tokenizer_name == "bytes"


def test_a_session_of_gpt2_small_stays_under_64_kilobytes(tmp_path):
    shape = {"n_embd": 768, "n_head": 12, "n_layer": 1, "n_positions": 1024}
    model = attach(build("gpt2", vocab_size=256, **shape), window=300, insert_layer=1)
    session = Session(model, ByteEncoder())
    session.read("x" * 900)
    assert session.windows == 3 and len(session._at.open) == 300
    assert session.state_bytes == 768 * 4
    session.save(tmp_path / "s")
    assert (tmp_path / "s").stat().st_size < 16 * 1024
    assert list(tmp_path.iterdir()) == [tmp_path / "s"]


def test_refusals(tmp_path):
    model = model_of()
    session = Session(model, ByteEncoder())
    for action in (lambda: session.write(3), lambda: session.stream(3)):
        with pytest.raises(ValueError, match="read at least one token first"):
            action()
    assert session.read("") == session.position == session.windows == session.state_bytes == 0
    session.model_name = "a name\nin two lines"
    session.save(tmp_path / "s")
    again = Session.load(tmp_path / "s", model, ByteEncoder())
    assert again.position == 0 and again.model_name is None
    session.read("K.")
    with pytest.raises(TypeError, match=r"a str .* or a pathlib.Path"):
        session.read(b"bytes")
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        session.read("snow \ud800")
    with pytest.raises(ValueError, match="-1 is not a number of tokens"):
        session.write(-1)
    for wrong in (
        {"temperature": -1},
        {"top_k": -2},
        {"top_p": 1.5},
        {"temperature": float("nan")},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            session.write(1, **wrong)
    assert session.position == 2
    with pytest.raises(ValueError, match="256 ids and the model only 61"):
        Session(model_of(vocabulary=61), ByteEncoder())
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        Session(model_of().train(), ByteEncoder())
    with pytest.raises(TypeError, match=r"add_recurrence\(model, config\)"):
        Session(build("gpt2"), ByteEncoder())
    with pytest.raises(FileNotFoundError, match="does not exist"):
        session.save(tmp_path / "missing" / "s")
    for folder in (tmp_path, "", "."):
        with pytest.raises(IsADirectoryError, match=r"it is a folder; give the name of a file\.$"):
            session.save(folder)
    for seed in (1.5, "1", None, 2**63):
        with pytest.raises(ValueError, match=r"seed=.* must be a whole number"):
            Session(model, ByteEncoder(), seed=seed)
    for number in (2.5, "2", None):
        with pytest.raises(ValueError, match="is not a number of tokens to write: give"):
            session.write(number)
    for stop in ([3], 3, None, b"x"):
        with pytest.raises(
            TypeError, match=r"stop=.* must be a text after which to stop: give a str"
        ):
            session.write(2, stop=stop)
    assert session.position == 2
    assert holdover.Session is Session
