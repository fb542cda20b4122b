"""Progress of an evaluation, and when its intervals say little."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0
# Intervals over fewer units say little.
FEW_UNITS = 10


@contextmanager
def progress(console: Console, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, elsewhere a line now and then."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("windows"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(label, total=total)
    done, shown = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, shown
        done += count
        bar.update(task, completed=done)
        if not console.is_terminal and time.monotonic() - shown > SECONDS_BETWEEN_LINES:
            shown = time.monotonic()
            console.print(f"{label}: {done:,} of {total:,} windows", highlight=False)

    with bar:
        yield advance
