"""Reading and writing from the command line: sessions that go on, and what is said about them."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from holdover import RecurrentModel, Session
from holdover.cli import entry as cli
from holdover.cli import sessions
from holdover.generation.session_file import read_session
from holdover.tokenization.encoders import ByteEncoder
from runs import refusal
from tiny import attach, build

BOOK = "Es war spät, als K. ankam. Das Dorf lag in tiefem Schnee.\n" * 80


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a state, a stock one, and a book."""
    folder = tmp_path_factory.mktemp("place")
    attach(build("gpt2", vocab_size=256), overlap=3).save_pretrained(folder / "model")
    build("gpt2", vocab_size=256).save_pretrained(folder / "stock")
    for name in ("model", "stock"):
        ByteEncoder().save(folder / name)
    (folder / "book.txt").write_text(BOOK)
    return folder


@pytest.fixture
def place(folder, tmp_path, monkeypatch):
    """Where the commands are called."""
    monkeypatch.chdir(tmp_path)
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.fixture
def run(place, capsys):
    def call(*arguments):
        capsys.readouterr()
        assert cli.main([*map(str, arguments)]) == 0
        return capsys.readouterr()

    return call


def session_in_python(folder, **settings):
    model = RecurrentModel.from_pretrained(folder / "model").eval()
    return Session(model, ByteEncoder(), **settings)


def test_the_text_alone_goes_to_standard_output(run, place):
    session = session_in_python(place, seed=3, temperature=0.7, top_k=20)
    session.read("Es war")
    said = run(
        *("generate", "--model", "model", "--prompt", "Es war", "--max-new-tokens", 40),
        *("--temperature", 0.7, "--top-k", 20, "--seed", 3),
    )
    assert said.out == session.write(40)
    assert said.err == ""


def test_a_prompt_from_a_file_and_from_standard_input(run, place, monkeypatch):
    (place / "prompt").write_text("Es war")
    way = ("--model", "model", "--max-new-tokens", 20, "--temperature", 0)
    given = run("generate", "--prompt", "Es war", *way).out
    assert run("generate", "--prompt-file", "prompt", *way).out == given
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Es war")))
    assert run("generate", *way, "-").out == given


def test_a_stock_model_writes_too(run):
    said = run("generate", "--model", "stock", "--prompt", "Es war", "--max-new-tokens", 99)
    assert len(said.out) > 30


def test_a_session_goes_on_and_remembers_its_model(run, place):
    way = ("--temperature", 0.9, "--top-p", 0.9)
    first = run(
        *("generate", "--session", "s", "--model", "model", "--prompt", "Es war", *way),
        *("--max-new-tokens", 15),
    )
    assert "Beginning a session in s. A saved state can leak" in first.err
    assert "21 tokens so far, saved in s." in first.err
    before = (place / "s").read_bytes()
    dry = run("generate", "--session", "s", "--max-new-tokens", 12, "--no-save")
    assert (place / "s").read_bytes() == before
    again = run("generate", "--session", "s", "--max-new-tokens", 12)
    assert dry.out == again.out
    session = session_in_python(place, temperature=0.9, top_p=0.9)
    session.read("Es war")
    assert first.out + again.out == session.write(15) + session.write(12)
    other = run("generate", "--session", "s", "--no-save", "--seed", 9, "--max-new-tokens", 30)
    session.reseed(9)
    assert other.out == session.write(30)


def test_a_session_finds_its_model_from_another_folder(run, place, capsys, monkeypatch):
    way = ("--temperature", 0, "--max-new-tokens", 5)
    own = ("--model", "model", "--tokenizer", "model")
    run("generate", "--session", "s", *own, "--prompt", "Es war", *way)
    found = read_session(place / "s")
    assert found.model_name == found.tokenizer_name == str(place / "model")
    here = run("generate", "--session", "s", "--no-save", *way).out
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    assert run("generate", "--session", "../s", "--no-save", *way).out == here
    run("generate", "--session", "../s", "--model", "../stock/../model", *way)
    assert read_session(place / "s").model_name == str(place / "model")
    (place / "model").rename(place / "moved")
    asked = []
    monkeypatch.setattr(sessions, "open_to_read", asked.append)
    said = refusal(capsys, ["generate", "--session", "../s"])
    assert f"model of the session ../s is not there ({place / 'model'}): give --model" in said
    assert not asked  # nor was the hub
    monkeypatch.undo()
    monkeypatch.chdir(place)
    model = RecurrentModel.from_pretrained(place / "moved").eval()
    session = Session(model, ByteEncoder(), model_name="nobody/such-a-name")
    session.save(place / "s")
    said = refusal(capsys, ["generate", "--session", "s", "--prompt", "K."])
    assert "session s is not there (nobody/such-a-name): give --model" in said


def test_reading_appends_and_is_done_once(run, place):
    (place / "short.txt").write_text("Schnee.")
    (place / "long.txt").write_text(BOOK[:500])
    said = run("read", "long.txt", "--session", "s", "--model", "model")
    size = len(BOOK[:500].encode())
    assert f"Read long.txt: {size} tokens. The session has {size} tokens in " in said.err
    assert said.out == ""
    run("read", "short.txt", "--session", "s")
    again = run("read", "long.txt", "--session", "s")
    assert again.err == "long.txt has been read to its end before: there is nothing to do.\n"
    found = read_session(place / "s").place
    assert [file.name for file in found.files] == ["long.txt", "short.txt"]
    assert found.position == size + 7
    session = session_in_python(place)
    session.read(BOOK[:500] + "Schnee.")
    told = run("generate", "--session", "s", "--temperature", 0, "--max-new-tokens", 20)
    assert told.out == session.write(20, temperature=0)


def test_info_needs_no_model(run, place, tmp_path):
    (place / "short.txt").write_text(BOOK[:100])
    run("read", "short.txt", "--session", "s", "--model", "model")
    os.unlink(place / "model")
    shown = run("session", "info", "s").out
    for part in (
        f"name {place / 'model'}, type gpt2",
        "position     102",
        "short.txt, whole",
        "can leak the text",
    ):
        assert part in shown, shown
    told = json.loads(run("session", "info", "s", "--json").out)
    assert told["position"] == 102 and told["model"]["overlap"] == 3
    assert told["windows"] == 17 and told["open"]["tokens"] == 3
    assert told["size"] == (place / "s").stat().st_size
    assert told["files"][0]["finished"] is True
    # The folder of the model is needed to find it again; where the text lay is nobody's business.
    assert json.dumps(told).count(str(tmp_path)) == 1


def test_progress_on_a_terminal_and_in_lines(run, place, monkeypatch):
    monkeypatch.setattr(sessions, "SECONDS_BETWEEN_LINES", 0)
    (place / "long.txt").write_text(BOOK[:500])
    said = run("read", "long.txt", "--session", "s", "--model", "model").err
    assert "Reading long.txt: byte 96 of 509 (96 tokens).\n" in said
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(sessions, "Console", lambda **options: terminal)
    run("read", "long.txt", "--session", "other", "--model", "model")
    assert "Reading long.txt" in screen.getvalue() and "tokens" in screen.getvalue()


READ_SLOWLY = """
import sys, torch
torch.set_num_threads(1)
from holdover.cli import entry as cli, sessions
sessions.SECONDS_BETWEEN_SAVES = 0
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_an_interrupted_reading_is_continued(number, run, place, folder, monkeypatch):
    path = place / "s"
    call = [
        sys.executable,
        "-c",
        READ_SLOWLY,
        "read",
        "book.txt",
        "--session",
        "s",
        "--model",
        "model",
    ]
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as process:
        patience = time.monotonic() + 60
        while not path.exists() and process.poll() is None and time.monotonic() < patience:
            time.sleep(0.002)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    stopped = read_session(path).place.files[0]
    assert not stopped.finished and 0 < stopped.tokens < len(BOOK.encode())
    assert (
        f"{signal.Signals(number).name}: stopped in book.txt after byte {stopped.bytes:,}" in said
    )
    assert "saved in s; the same command continues." in said
    assert (
        f"Continuing book.txt after byte {stopped.bytes:,}"
        in run("read", "book.txt", "--session", "s").err
    )
    session = session_in_python(place)
    session.read(place / "book.txt")
    session.save(place / "whole")
    here, whole = read_session(path).place, read_session(place / "whole").place
    assert (here.open, here.position) == (whole.open, whole.position)
    assert here.files[0].tokens == whole.files[0].tokens and here.files[0].finished
    for name, tensor in whole.state.tensors.items():
        torch.testing.assert_close(here.state.tensors[name], tensor, rtol=1e-3, atol=1e-4)
    told = run("generate", "--session", "s", "--temperature", 0, "--max-new-tokens", 20)
    assert told.out == session.write(20, temperature=0)


def test_an_interrupted_writing_is_saved(run, place, capsys, monkeypatch):
    shown = []

    def interrupt(text):
        shown.append(text)
        if len(shown) == 5:
            signal.raise_signal(signal.SIGINT)
        return True

    monkeypatch.setattr(sessions, "write", interrupt)
    way = ("--session", "s", "--model", "model", "--prompt", "K.", "--max-new-tokens", "900")
    assert cli.main(["generate", *way]) == 130
    assert "saved in s." in capsys.readouterr().err
    session = session_in_python(place)
    session.read("K.")
    written = read_session(place / "s").place.position - 2
    assert "".join(shown) == session.write(written) and len(shown) == 5


def test_nobody_reads_standard_output_any_more(place):
    call = [sys.executable, "-m", "holdover", "generate", "--model", "model", "--prompt", "K."]
    call += ["--session", "s", "--max-new-tokens", "100000"]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(3)
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(60) == 0, said
    assert said.splitlines()[-1].endswith("saved in s.")
    assert 2 < read_session(place / "s").place.position < 100_000


def test_refusals(run, place, capsys):
    def refused(*arguments):
        return refusal(capsys, [*map(str, arguments)])

    new = ("--model", "model", "--max-new-tokens", 3)
    assert "nothing to continue: give --prompt" in refused("generate", *new)
    assert "no session at s: give --model" in refused("generate", "--session", "s")
    assert "Which model" in refused("generate", "--prompt", "K.")
    assert "there is no session: give --session, or leave" in refused("generate", *new, "--no-save")
    assert "must not be negative" in refused("generate", "--prompt", "K.", "--max-new-tokens", -1)
    assert "--top-p 2.0 must be a share" in refused(
        "generate", *new, "--prompt", "K.", "--top-p", 2
    )
    assert "--seed -3 must be" in refused("generate", *new, "--prompt", "K.", "--seed", -3)
    assert "did you mean --prompt" in refused("generate", *new, "--promt", "K.")
    assert "'K.' is not a flag: give a text with --prompt" in refused("generate", *new, "K.")
    assert "no text file at gone" in refused("generate", *new, "--prompt-file", "gone")
    assert "no text file at gone" in refused("read", "gone", "--session", "s", "--model", "model")
    assert "folder none of the session" in refused(
        "read", "book.txt", "--session", "none/s", *new[:2]
    )
    assert not (place / "s").exists()
    (place / "b.txt").write_bytes(b"snow \xff snow")
    run("read", "b.txt", "--session", "s", "--model", "model")  # a model of bytes reads all bytes
    (place / "s").write_text("no session")
    assert "is not a readable session file" in refused("generate", "--session", "s")
    assert "is not a readable session file" in refused("session", "info", "s")
    assert "no session file at" in refused("session", "info", "nothing")
    (place / "s").unlink()
    run("generate", "--session", "s", *new, "--prompt", "K.")
    assert "is a session of another model" in refused(
        "generate", "--session", "s", "--model", "stock"
    )
    (place / "part.txt").write_text(BOOK[:900])
    session = Session.load(place / "s", session_in_python(place).model, ByteEncoder())
    next(session.read_on(Path("part.txt")))
    session.save(place / "s")
    (place / "part.txt").write_text(BOOK[:901])
    assert "part.txt has changed since" in refused("read", "part.txt", "--session", "s")


def test_a_mistyped_flag_is_not_blamed_on_the_dash(place, capsys):
    said = refusal(
        capsys, ["generate", "--model", "model", "--prompt", "hi", "--temprature", "0.5"]
    )
    assert "did you mean --temperature" in said
    said = refusal(capsys, ["generate", "--model", "model", "--prompt", "hi", "-"])
    assert "Two texts" in said


def test_a_book_that_grew_is_said_to_be_read_again(run, place):
    book = place / "short.txt"
    book.write_text("Es war.")
    run("read", book, "--session", "s", "--model", "model")
    book.write_text("Es war spät.")
    assert "from its beginning" in run("read", book, "--session", "s").err
