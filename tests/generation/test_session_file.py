"""Whatever lies in a session file: it is refused in one sentence, or it is the session."""

import copy
import hashlib
import json
import re
import resource
from random import Random

import pytest
import torch
from safetensors.torch import load, save, save_file

from fast_tokenizers import byte_level, metaspace
from holdover import Session
from holdover.generation.session_file import BLANK, read_session
from holdover.generation.session_position import Sampling, layout
from holdover.storage import NewerFormatError
from holdover.tokenization.encoders import ByteEncoder, HFEncoder
from tiny import attach, build

pytestmark = pytest.mark.quick

MUTATIONS = 2000
REHASHED = 1200
HOSTILE = [
    None,
    -1,
    0,
    1,
    2**31,
    2**63,
    10**4000,
    1e999,
    float("nan"),
    0.5,
    True,
    "",
    "x" * 100_000,
    "\x1b[2J",
    "\ud800",
    "../../etc",
    [],
    {},
    [[]] * 50,
    {"__reduce__": "os.system"},
]


@pytest.fixture(scope="module")
def model():
    return attach(build("gpt2", vocab_size=256).double(), overlap=3).double()


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """(bytes of a session within a file, a window and a character; what it writes next)."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "book.txt").write_text("Es war spät, als K. ankam. " * 20)
    session = Session(model, ByteEncoder(), seed=4, temperature=0.8, top_k=99)
    next(session.read_on(folder / "book.txt"))
    session.write(8)
    while not session._at.unfinished:
        session.write(1)
    session.save(folder / "s")
    return (folder / "s").read_bytes(), session.write(6)


def opened(content):
    """(header, data) of safetensors."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def closed(header, data):
    """A file whose hash is right, whatever it says."""
    header["__metadata__"]["sha256"] = BLANK
    raw = json.dumps(header, separators=(",", ":")).encode()
    content = len(raw).to_bytes(8, "little") + raw + data
    digest = hashlib.sha256(content).hexdigest()
    return content.replace(f'"sha256":"{BLANK}"'.encode(), f'"sha256":"{digest}"'.encode(), 1)


def told(content, change):
    """With another session in its header, and a right hash."""
    header, data = opened(content)
    session = json.loads(header["__metadata__"]["session"])
    change(session)
    header["__metadata__"]["session"] = json.dumps(session)
    return closed(header, data)


def with_tensors(content, **changed):
    """With other tensors, and a right hash."""
    header, _ = opened(content)
    tensors = load(content) | {name.replace("__", "."): t for name, t in changed.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return closed(*opened(save(tensors, metadata=header["__metadata__"])))


def refusal(path, content, model, encoder=None):
    path.write_bytes(content)
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        Session.load(path, model, encoder or ByteEncoder())
    return sentence(refused.value, path)


def sentence(error, path):
    said = str(error)
    assert type(error) in (ValueError, NewerFormatError), repr(error)
    assert said.startswith(str(path)) and said.endswith("."), said
    assert "\n" not in said and len(said) < 1000 and said.isprintable(), said
    return said


def mutated(content, draw):
    """Bits, bytes and blocks turned, taken away, put in and swapped."""
    damaged = bytearray(content)
    header = 8 + int.from_bytes(content[:8], "little")
    at = draw.randrange(draw.choice([9, header, len(content)]))
    size = draw.choice([1, 1, 2, 8, 64, 500])
    kind = draw.randrange(7)
    if kind == 0:
        damaged[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        damaged[at : at + size] = draw.randbytes(size)
    elif kind == 2:
        del damaged[at:]
    elif kind == 3:
        del damaged[at : at + size]
    elif kind == 4:
        damaged[at:at] = draw.randbytes(size)
    elif kind == 5:
        other = draw.randrange(len(content))
        damaged[at : at + size], damaged[other : other + size] = (
            damaged[other : other + size],
            damaged[at : at + size],
        )
    else:
        damaged[at] = draw.choice(b'0123456789-"{}[],:eE. \x00\xff')
    return bytes(damaged)


def test_mutations_are_refused_or_change_nothing(model, saved, tmp_path):
    content, following = saved
    draw, path, unchanged = Random(0), tmp_path / "s", 0
    for _ in range(MUTATIONS):
        damaged = mutated(content, draw)
        path.write_bytes(damaged)
        try:
            session = Session.load(path, model, ByteEncoder())
        except ValueError as error:
            sentence(error, path)
            assert damaged != content
        else:
            unchanged += 1
            assert session.write(6) == following
            assert damaged == content
    assert unchanged < MUTATIONS / 20


def places(value, path=()):
    """Where something stands in nested JSON."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from places(inner, (*path, key))


def put(value, path, new):
    *before, last = path
    for key in before:
        value = value[key]
    if new is places:  # a thing that is missing
        del value[last]
    else:
        value[last] = new


def test_hostile_headers_with_a_right_hash(model, saved, tmp_path):
    """Some are sessions (of another temperature, say): those can be written on with."""
    content, path, draw = saved[0], tmp_path / "s", Random(1)
    header, data = opened(content)
    session = json.loads(header["__metadata__"]["session"])
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    for _ in range(REHASHED):
        new, changed = draw.choice([*HOSTILE, places]), copy.deepcopy(header)
        if draw.random() < 0.5:
            hostile = copy.deepcopy(session)
            put(hostile, draw.choice(list(places(session))), new)
            changed["__metadata__"]["session"] = json.dumps(hostile)
        else:
            where = draw.choice(list(places(tensors)))
            kinds = ["F64", "F32", "BOOL", "I64", "U8", "F8_E4M3", "C64", "NONE"]
            put(changed, where, draw.choice(kinds) if where[-1] == "dtype" else new)
        path.write_bytes(closed(changed, data))
        try:
            loaded = Session.load(path, model, ByteEncoder())
        except ValueError as error:
            sentence(error, path)
        else:
            loaded.write(2)
            loaded.save(path)


def test_hostile_content_with_a_right_hash(model, saved, tmp_path):
    content, path = saved[0], tmp_path / "s"
    tensors = load(content)
    summary, tail = tensors["carry.summary"], tensors["state.tail"]
    opened_ids, random = tensors["session.open"], tensors["session.random"]
    for broken, said in [
        ({"carry__summary": summary * float("nan")}, "not made of numbers"),
        ({"carry__summary": summary / 0}, "not made of numbers"),
        ({"carry__summary": summary.float()}, "float32 where summary .* float64 was expected"),
        ({"carry__summary": summary.long()}, "int64 where summary .* float64 was expected"),
        ({"carry__summary": summary[:, :, :5].clone()}, r"\[1, 1, 5\] .* \[1, 1, 32\]"),
        ({"carry__summary": torch.cat([summary] * 2)}, "not made of numbers"),
        ({"carry__summary": None}, "not made of numbers"),
        ({"carry__other": summary.clone()}, "other .* where summary"),
        ({"another": summary.clone()}, "not made of numbers"),
        ({"state__tail": None}, "no tokens of its overlap"),
        ({"state__tail": tail[:, :2].clone()}, "its overlap are wrong"),
        ({"state__tail": tail - 1000}, "its overlap are wrong"),
        ({"state__tail": tail + 256}, "ids 0 to 255"),
        ({"session__open": opened_ids + 256}, "ids 0 to 255"),
        ({"session__open": opened_ids - 256}, "negative"),
        (
            {"session__open": opened_ids[1:].clone()},
            "its open window has . tokens where . were expected",
        ),
        ({"session__open": opened_ids.long()}, "session.open is not a row of torch.int32"),
        ({"session__unread": torch.tensor([300], dtype=torch.int32)}, "the id 300"),
        ({"session__unread": torch.tensor([3, 3], dtype=torch.int32)}, "position"),
        (
            {"session__unread": torch.tensor([], dtype=torch.int32)},
            "its open window has . tokens where . were expected",
        ),
        ({"session__random": random[:-1].clone()}, "does not fit this version of torch"),
        (
            {"session__random": torch.zeros_like(random)},
            "counters of its random state are impossible",
        ),
        (
            {"session__random": torch.full_like(random, 255)},
            "counters of its random state are impossible",
        ),
        ({"session__random": None}, "has no 'session.random'"),
        ({"session__unfinished": torch.tensor([65], dtype=torch.uint8)}, "last character"),
        ({"session__unfinished": torch.full((9,), 226).to(torch.uint8)}, "last character"),
    ]:
        found = refusal(path, with_tensors(content, **broken), model)
        assert re.search(said, found), found
    # Counters that would make torch read behind its numbers.
    beyond = random.clone()
    beyond[8:12], beyond[16:24] = torch.tensor([112, 2, 0, 0]), torch.tensor([112, 2] + [0] * 6)
    assert "are impossible" in refusal(path, with_tensors(content, session__random=beyond), model)


def test_sizes_are_looked_at_before_anything_is_made(model, saved, tmp_path):
    content, path = saved[0], tmp_path / "s"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    header, data = opened(content)
    for number in (2**28, 2**40, 2**62, 2**63, -1):
        huge = copy.deepcopy(header)
        huge["carry.summary"] |= {"shape": [1, 1, number]}
        refusal(path, closed(huge, data), model)
        huge["carry.summary"] |= {"data_offsets": [0, number]}
        refusal(path, closed(huge, data), model)
        refusal(path, (number % 2**64).to_bytes(8, "little") + content[8:], model)
    deep = b"[" * 1_000_000
    refusal(path, len(deep).to_bytes(8, "little") + deep, model)
    nested = copy.deepcopy(header)
    nested["__metadata__"]["session"] = "[" * 100_000
    refusal(path, closed(nested, data), model)
    with path.open("wb") as file:
        file.write(content)
        file.truncate(1 << 40)  # a terabyte of nothing
    with pytest.raises(ValueError, match=r"has 1,099,511,627,776 bytes where [\d,]+ were expected"):
        Session.load(path, model, ByteEncoder())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_what_is_said_of_foreign_files(model, saved, tmp_path):
    content, path = saved[0], tmp_path / "s"
    for other in (b"", b"text", b"\x80\x04\x95pickle" * 99, content[:200]):
        assert "is not a readable session file" in refusal(path, other, model)
    said = refusal(path, content[:-1], model)
    assert f"{len(content) - 1:,} bytes where {len(content):,} were expected" in said
    turned = bytearray(content)
    turned[-1] ^= 1
    assert "was changed after it was saved" in refusal(path, bytes(turned), model)
    save_file({"weight": torch.zeros(3)}, path)
    refused = refusal(path, path.read_bytes(), model)
    assert "is not a readable session file" in refused
    save_file({"weight": torch.zeros(3)}, path, metadata={"format": "pt"})
    refused = refusal(path, path.read_bytes(), model)
    assert "not a session: its header says 'pt' where 'holdover.session' was expected" in refused
    model(torch.zeros(1, 3, dtype=torch.long)).state.detach().save(path)
    assert "'holdover.state.v1'" in refusal(path, path.read_bytes(), model)
    reasons = {
        "0": "of version '0', and this holdover reads version '1'",
        "2": "was written by a newer holdover (format 2; this one reads up to 1): upgrade holdover",
    }
    for version, reason in reasons.items():
        header, data = opened(content)
        header["__metadata__"]["version"] = version
        refused = refusal(path, closed(header, data), model)
        assert reason in refused
    with pytest.raises(FileNotFoundError, match="no session file at"):
        read_session(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="no session file at"):
        read_session(tmp_path)


def test_another_model_or_tokenizer_is_named(model, saved, tmp_path):
    content, path = saved[0], tmp_path / "s"

    def other(seed=0, **options):
        return attach(build("gpt2", vocab_size=256, seed=seed).double(), **options).double()

    assert "overlap is 3 in the session and 0 in the model" in refusal(path, content, other())
    assert "weights is" in refusal(path, content, other(seed=5, overlap=3))
    single = copy.deepcopy(model).float()
    said = refusal(path, content, single)
    assert "float64 where summary [1, 1, 32] float32 was expected" in said
    assert "give the model in the precision" in said
    tokenizer = HFEncoder(byte_level(), "mine")
    wide = attach(build("gpt2", vocab_size=720), overlap=3)
    session = Session(wide, tokenizer)
    session.read("Es war spät.")
    session.save(path)
    Session.load(path, wide, byte_level())
    said = refusal(path, path.read_bytes(), wide, HFEncoder(metaspace(), "theirs"))
    assert "made with another tokenizer than theirs" in said


def test_an_interrupted_save_leaves_the_old_file(model, saved, tmp_path, monkeypatch):
    path = tmp_path / "s"
    path.write_bytes(saved[0])
    session = Session.load(path, model, ByteEncoder())
    session.write(3)

    def full(descriptor):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        session.save(path)
    assert path.read_bytes() == saved[0]
    assert list(tmp_path.iterdir()) == [path]


def test_a_state_that_overflowed_is_not_saved(model, tmp_path):
    session = Session(model, ByteEncoder())
    session.read("Es war spät, als K. ankam.")
    session._at.state.tensors["summary"][:] = float("inf")
    with pytest.raises(ValueError, match="no longer made of numbers"):
        session.save(tmp_path / "s")


def test_the_file_is_readable_safetensors_and_says_what_it_is(saved, tmp_path):
    header, _ = opened(saved[0])
    names = {"carry.summary", "state.tail"} | {
        f"session.{name}" for name in ("open", "unread", "random", "unfinished")
    }
    assert set(header) == {"__metadata__", *names}
    assert header["__metadata__"]["format"] == "holdover.session"
    (tmp_path / "s").write_bytes(saved[0])
    found = read_session(tmp_path / "s")
    assert found.place.sampling == Sampling(0.8, 99)
    (file,) = found.place.files
    assert file.name.endswith("book.txt") and not file.finished
    assert file.tokens == file.bytes == 16 * 6
    assert len(saved[0]) < 8192


def test_where_a_window_stands_follows_from_the_position():
    for window, overlap in ((9, 0), (9, 3), (1, 0), (5, 4)):
        windows, held = 0, 0
        for read in range(60):
            assert layout(read, window, overlap) == (windows, held)
            full = held == (window if windows == 1 else window - overlap)
            windows, held = (windows + 1, 1) if full or windows == 0 else (windows, held + 1)
