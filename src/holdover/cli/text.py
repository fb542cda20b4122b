"""The verbs that read and write texts: generate, read, session.

* Standard output is the text alone; what is said about it goes to standard error.
* A session file names its model, which is therefore given once.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ..generation.session import Session
from ..generation.session_checks import check_exists
from ..generation.session_file import read_session
from ..generation.session_info import LEAK, describe, lasting_name
from ..generation.session_position import FileRead
from ..language.evaluation import open_to_read
from ..recurrent.model import RecurrentModel
from ..runs.models import model_folder
from ..runs.provenance import choose_device
from ..text.progress import SECONDS_BETWEEN_LINES, say
from ..tokenization.encoders import encoder_of
from ..tokenization.files import compression, sha256
from ..training.signals import Signals

SECONDS_BETWEEN_SAVES = 30.0
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_text_verbs(verbs: Verbs) -> None:
    _add_generate(verbs)
    _add_read(verbs)
    _add_session(verbs)


def _add_generate(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "generate",
        help="write on, token by token, past any position limit",
        description="Continue a text, or a session that was saved. The text goes to standard output "
        "as it is written.",
        allow_abbrev=False,
    )
    _add_model(verb)
    prompt = verb.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="text to continue")
    prompt.add_argument(
        "--prompt-file", type=Path, metavar="FILE", help="file whose text is continued"
    )
    # Not in the group: it would take the value of a mistyped flag, and be blamed for it.
    verb.add_argument("standard_input", nargs="?", metavar="-", help="read it from standard input")
    verb.add_argument("--max-new-tokens", type=int, default=200, metavar="N", help="default: 200")
    verb.add_argument(
        "--temperature",
        type=float,
        metavar="X",
        help="0 takes the most probable token (default: 1)",
    )
    verb.add_argument(
        "--top-k", type=int, metavar="N", help="choose among the N most probable tokens; 0: all"
    )
    verb.add_argument(
        "--top-p", type=float, metavar="X", help="choose among those with this share; 1: all"
    )
    verb.add_argument(
        "--seed",
        type=int,
        metavar="S",
        help="of what is drawn (default: 0, or as the session goes on)",
    )
    verb.add_argument(
        "--session",
        type=Path,
        metavar="FILE",
        help="session to continue (or begin), saved afterwards",
    )
    verb.add_argument(
        "--no-save", action="store_true", help="leave the file of the session as it is"
    )
    verb.set_defaults(run=run_generate, verb=verb)


def _add_read(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "read",
        help="read a text into a session; interrupted, it is continued",
        description="Read a text file of any length into a session, which is saved now and then, at the "
        "end, and when it is interrupted. The same command continues in the file where it stopped; "
        "another file is read behind what was read before.",
        allow_abbrev=False,
    )
    verb.add_argument("book", type=Path, metavar="BOOK", help="text file, plain, .gz or .xz")
    verb.add_argument(
        "--session", type=Path, required=True, metavar="FILE", help="session to continue, or begin"
    )
    _add_model(verb)
    verb.add_argument(
        "--errors",
        choices=["strict", "replace"],
        default="strict",
        help="what to do with bytes that are no UTF-8 (default: strict, say where they are; a model of "
        "bytes reads them all)",
    )
    verb.set_defaults(run=run_read, verb=verb)


def _add_model(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--model", metavar="DIR", help="folder or name of a model; a session knows its own"
    )
    verb.add_argument(
        "--tokenizer", metavar="DIR", help="its tokenizer, or the word bytes (default: the model's)"
    )
    verb.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="execute Python code that comes with the model or its tokenizer; read that code first",
    )
    verb.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")


def _add_session(verbs: Verbs) -> None:
    about = "show what a saved session holds"
    group = verbs.add_parser("session", help=about, description=f"{about.capitalize()}.")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    verb = actions.add_parser(
        "info", help=about, description=f"{about.capitalize()}; the model is not needed."
    )
    verb.add_argument("session", type=Path, metavar="FILE", help="file of a session")
    verb.add_argument("--json", action="store_true", help="as JSON")
    verb.set_defaults(run=run_info, verb=verb)


def run_generate(parsed: argparse.Namespace) -> None:
    console = Console(stderr=True)
    if parsed.max_new_tokens < 0:
        raise ValueError(f"--max-new-tokens {parsed.max_new_tokens} must not be negative.")
    if parsed.standard_input not in (None, "-"):
        raise ValueError(
            f"{parsed.standard_input!r} is no flag: give a text with --prompt, a file with "
            "--prompt-file, or - for standard input."
        )
    if parsed.standard_input and (parsed.prompt is not None or parsed.prompt_file is not None):
        raise ValueError("Two texts to continue were given: - and a prompt; give one of them.")
    path: Path | None = parsed.session
    if parsed.no_save and path is None:
        raise ValueError(
            "--no-save leaves the file of a session as it is, and there is no session: give --session, "
            "or leave --no-save out."
        )
    check_exists(parsed.prompt_file)
    session = open_session(path, parsed, console)
    if parsed.seed is not None:
        session.reseed(parsed.seed)
    chosen = {name: getattr(parsed, name) for name in ("temperature", "top_k", "top_p")}
    # Refused before a long prompt is read.
    session.sampling.changed(**chosen)
    if parsed.prompt is not None:
        session.read(parsed.prompt)
    elif parsed.prompt_file is not None:
        session.read(parsed.prompt_file)
    elif parsed.standard_input is not None:
        session.read(_standard_input())
    if session.position == 0:
        raise ValueError(
            "There is nothing to continue: give --prompt, --prompt-file, - or a --session that has "
            "read something."
        )
    with Signals() as signals:
        for piece in session.stream(parsed.max_new_tokens, **chosen):
            if not _shown(piece) or signals.name:
                break
        if sys.stdout.isatty():
            _shown("\n")
        if path is not None and not parsed.no_save:
            session.save(path)
            say(console, f"{session.position:,} tokens so far, saved in {path}.")
    if signals.name:
        raise KeyboardInterrupt


def run_read(parsed: argparse.Namespace) -> None:
    console = Console(stderr=True)
    book, path = parsed.book, parsed.session
    check_exists(book)
    if path.is_file():
        finished = {file.sha256 for file in read_session(path).place.files if file.finished}
        if sha256(book) in finished:
            say(console, f"{book} was read to its end before: there is nothing to do.")
            return
    session = open_session(path, parsed, console)
    begun = session.begun(book)
    if begun.tokens:
        say(console, f"Continuing {book} behind {_place(begun)}.")
    elif any(file.name == begun.name for file in session.files):
        say(console, f"{book} is not what it was when it was read: it is read from its beginning.")
    saved = time.monotonic()
    with Signals() as signals, _progress(console, begun) as report:
        for file in session.read_on(book, errors=parsed.errors):
            report(file)
            if signals.name or file.finished:
                break
            if time.monotonic() - saved >= SECONDS_BETWEEN_SAVES:
                session.save(path)
                saved = time.monotonic()
        # Inside: a second signal is what stops a save.
        session.save(path)
    if signals.name and not file.finished:
        say(
            console,
            f"{signals.name}: stopped in {book} behind {_place(file)}, saved in {path}; the same "
            "command continues.",
        )
        raise KeyboardInterrupt
    say(
        console,
        f"Read {book}: {file.tokens:,} tokens. The session has {session.position:,} tokens in "
        f"{session.windows:,} windows, {path.stat().st_size:,} bytes in {path}.",
    )


def run_info(parsed: argparse.Namespace) -> None:
    told = describe(read_session(parsed.session))
    if parsed.json:
        print(json.dumps(told, indent=2))
        return
    files = told.pop("files")
    for name, value in told.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items())
        print(
            f"{name.replace('_', ' '):12} {value:,}" if type(value) is int else f"{name:12} {value}"
        )
    for file in files:
        come = "whole" if file["finished"] else f"to byte {file['bytes']:,} of {file['size']:,}"
        print(f"{'read':12} {file['name']}, {come}, {file['tokens']:,} tokens")


def open_session(path: Path | None, parsed: argparse.Namespace, console: Console) -> Session:
    """A saved session with its model, or a new one."""
    saved = read_session(path) if path is not None and path.exists() else None
    name = parsed.model or (saved and saved.model_name)
    if not name and saved is None and path is not None:
        raise ValueError(f"There is no session at {path}: give --model to begin one.")
    if not name:
        raise ValueError("Which model is to read and write: give --model.")
    if path is not None and path.parent != Path() and not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} of the session does not exist.")
    asked = parsed.tokenizer or (saved and saved.tokenizer_name)
    trust = parsed.trust_remote_code
    if parsed.model:
        model = open_to_read(name, trust_remote_code=trust)
    else:
        model = _own_model(name, path, trust)
    torch.nn.Module.to(model.eval(), choose_device(parsed.device))
    encoder = encoder_of(model_folder(name), asked, trust_remote_code=trust)
    if saved is None or path is None:
        if path is not None:
            say(console, f"Beginning a session in {path}. {LEAK}")
        return Session(model, encoder, model_name=name, tokenizer_name=asked)
    session = Session.load(path, model, encoder)
    session.model_name, session.tokenizer_name = lasting_name(name), lasting_name(asked)
    return session


def _own_model(name: str, path: Path | None, trust_remote_code: bool) -> RecurrentModel:
    """The model that a session names."""
    gone = ValueError(
        f"The model of the session {path} is not there ({name}): give --model with the folder or the "
        "name of the model that it was made with."
    )
    # The hub is not asked for what was a folder.
    if os.path.isabs(name) and not os.path.isdir(name):
        raise gone
    try:
        return open_to_read(name, trust_remote_code=trust_remote_code)
    except ValueError as error:
        if os.path.isdir(model_folder(name)):
            raise
        raise gone from error


@contextmanager
def _progress(console: Console, begun: FileRead) -> Iterator[Any]:
    """A bar on a terminal, a line now and then elsewhere."""
    # What a compressed file holds is not known before it is read.
    total = None if compression(Path(begun.name)) else begun.size
    shown = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[tokens]:,} tokens"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    label = f"Reading {Path(begun.name).name}"
    task = bar.add_task(label, total=total, completed=begun.bytes, tokens=begun.tokens)

    def report(file: FileRead) -> None:
        nonlocal shown
        bar.update(task, completed=file.bytes, tokens=file.tokens)
        if not console.is_terminal and time.monotonic() - shown >= SECONDS_BETWEEN_LINES:
            shown = time.monotonic()
            say(console, f"{label}: {_place(file)}.")

    with bar:
        yield report


def _place(file: FileRead) -> str:
    of = "" if compression(Path(file.name)) else f" of {file.size:,}"
    return f"byte {file.bytes:,}{of} ({file.tokens:,} tokens)"


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Standard input is not valid UTF-8: byte {error.start} is "
            f"0x{error.object[error.start]:02x}; give it as UTF-8."
        ) from error


def _shown(text: str) -> bool:
    """Whether someone still reads standard output."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
