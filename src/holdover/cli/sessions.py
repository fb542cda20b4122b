"""Carries out the verbs generate and read.

* Standard output is the text alone; messages go to standard error.
* A session file names its model, so that it need be given only once.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ..generation.session import Session
from ..generation.session_checks import check_exists
from ..generation.session_file import read_session
from ..generation.session_info import LEAK, lasting_name
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


def generate(parsed: argparse.Namespace) -> None:
    console = Console(stderr=True)
    if parsed.max_new_tokens < 0:
        raise ValueError(f"--max-new-tokens {parsed.max_new_tokens} must not be negative.")
    if parsed.standard_input not in (None, "-"):
        raise ValueError(
            f"{parsed.standard_input!r} is not a flag: give a text with --prompt, a file with "
            "--prompt-file, or - for standard input."
        )
    if parsed.standard_input and (parsed.prompt is not None or parsed.prompt_file is not None):
        raise ValueError("Two texts to continue were given: - and a prompt; give only one.")
    path: Path | None = parsed.session
    if parsed.no_save and path is None:
        raise ValueError(
            "--no-save leaves the session's file as it is, but there is no session: give --session, or "
            "leave --no-save out."
        )
    check_exists(parsed.prompt_file)
    session = open_session(path, parsed, console)
    if parsed.seed is not None:
        session.reseed(parsed.seed)
    sampling = {name: getattr(parsed, name) for name in ("temperature", "top_k", "top_p")}
    # Refuse wrong values before reading a long prompt.
    session.sampling.changed(**sampling)
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
        for piece in session.stream(parsed.max_new_tokens, **sampling):
            if not write(piece) or signals.name:
                break
        if sys.stdout.isatty():
            write("\n")
        if path is not None and not parsed.no_save:
            session.save(path)
            say(console, f"{session.position:,} tokens so far, saved in {path}.")
    if signals.name:
        raise KeyboardInterrupt


def read(parsed: argparse.Namespace) -> None:
    console = Console(stderr=True)
    book, path = parsed.book, parsed.session
    check_exists(book)
    if path.is_file():
        finished = {file.sha256 for file in read_session(path).place.files if file.finished}
        if sha256(book) in finished:
            say(console, f"{book} has been read to its end before: there is nothing to do.")
            return
    session = open_session(path, parsed, console)
    begun = session.begun(book)
    if begun.tokens:
        say(console, f"Continuing {book} after {_progress_in(begun)}.")
    elif any(file.name == begun.name for file in session.files):
        say(console, f"{book} has changed since it was read: reading it from its beginning.")
    saved = time.monotonic()
    with Signals() as signals, _progress(console, begun) as report:
        for file in session.read_on(book, errors=parsed.errors):
            report(file)
            if signals.name or file.finished:
                break
            if time.monotonic() - saved >= SECONDS_BETWEEN_SAVES:
                session.save(path)
                saved = time.monotonic()
        # Still inside, so that only a second signal can stop the save.
        session.save(path)
    if signals.name and not file.finished:
        say(
            console,
            f"{signals.name}: stopped in {book} after {_progress_in(file)}, saved in {path}; the same "
            "command continues.",
        )
        raise KeyboardInterrupt
    say(
        console,
        f"Read {book}: {file.tokens:,} tokens. The session has {session.position:,} tokens in "
        f"{session.windows:,} windows, {path.stat().st_size:,} bytes in {path}.",
    )


def open_session(path: Path | None, parsed: argparse.Namespace, console: Console) -> Session:
    """A saved session with its model, or a new one."""
    saved = read_session(path) if path is not None and path.exists() else None
    name = parsed.model or (saved and saved.model_name)
    if not name and saved is None and path is not None:
        raise ValueError(f"There is no session at {path}: give --model to begin one.")
    if not name:
        raise ValueError("Which model should read and write? Give --model.")
    if path is not None and path.parent != Path() and not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} of the session does not exist.")
    tokenizer = parsed.tokenizer or (saved and saved.tokenizer_name)
    trust = parsed.trust_remote_code
    if parsed.model:
        model = open_to_read(name, trust_remote_code=trust)
    else:
        model = _own_model(name, path, trust)
    torch.nn.Module.to(model.eval(), choose_device(parsed.device))
    encoder = encoder_of(model_folder(name), tokenizer, trust_remote_code=trust)
    if saved is None or path is None:
        if path is not None:
            say(console, f"Beginning a session in {path}. {LEAK}")
        return Session(model, encoder, model_name=name, tokenizer_name=tokenizer)
    session = Session.load(path, model, encoder)
    session.model_name, session.tokenizer_name = lasting_name(name), lasting_name(tokenizer)
    return session


def _own_model(name: str, path: Path | None, trust_remote_code: bool) -> RecurrentModel:
    """The model that a session names."""
    missing = ValueError(
        f"The model of the session {path} is not there ({name}): give --model with the folder or the "
        "name of the model that it was made with."
    )
    # A path is a folder that is gone, not a name to ask the hub for.
    if os.path.isabs(name) and not os.path.isdir(name):
        raise missing
    try:
        return open_to_read(name, trust_remote_code=trust_remote_code)
    except ValueError as error:
        if os.path.isdir(model_folder(name)):
            raise
        raise missing from error


@contextmanager
def _progress(console: Console, begun: FileRead) -> Iterator[Any]:
    """A progress bar on a terminal; elsewhere, a line every few seconds."""
    # The size of a compressed text is not known in advance.
    total = None if compression(Path(begun.name)) else begun.size
    last_line = time.monotonic()
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
        nonlocal last_line
        bar.update(task, completed=file.bytes, tokens=file.tokens)
        if not console.is_terminal and time.monotonic() - last_line >= SECONDS_BETWEEN_LINES:
            last_line = time.monotonic()
            say(console, f"{label}: {_progress_in(file)}.")

    with bar:
        yield report


def _progress_in(file: FileRead) -> str:
    total = "" if compression(Path(file.name)) else f" of {file.size:,}"
    return f"byte {file.bytes:,}{total} ({file.tokens:,} tokens)"


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Standard input is not valid UTF-8: byte {error.start} is "
            f"0x{error.object[error.start]:02x}; convert it to UTF-8."
        ) from error


def write(text: str) -> bool:
    """Write to standard output; False if nobody reads it any more."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise Python complains again when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
