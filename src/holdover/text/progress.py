"""Progress of encoding a text: a bar on a terminal, a line every few seconds elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ..tokenization.document import Source

SECONDS_BETWEEN_LINES = 10.0

# (bytes read since the last call, tokens so far)
Report = Callable[[int, int], None]


@contextmanager
def progress(console: Console, label: str, source: Source) -> Iterator[Report]:
    total = source.size()
    began = time.monotonic()
    shown = began
    done = made = 0
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(f"Encoding {label}", total=total)

    def report(read: int, tokens: int) -> None:
        nonlocal done, made, shown
        done, made = done + read, tokens
        bar.update(task, completed=done if total is None else min(done, total))
        now = time.monotonic()
        if not console.is_terminal and now - shown >= SECONDS_BETWEEN_LINES:
            shown = now
            share = f" of {total / 1e6:,.1f}" if total else ""
            say(console, f"Encoding {label}: {done / 1e6:,.1f}{share} MB, {made:,} tokens.")

    with bar:
        yield report
    seconds = time.monotonic() - began
    say(console, f"Encoded {label}: {done / 1e6:,.1f} MB, {made:,} tokens in {seconds:,.1f} s.")


def say(console: Console, line: str) -> None:
    """Print a line without markup: names of files may contain brackets."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)
