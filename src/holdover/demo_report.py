"""What holdover demo shows while it trains, and of what it measured."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

Report = Callable[[float, float], None]

ROWS: dict[str, Callable[[dict[str, Any]], str]] = {
    "perplexity": lambda twin: "{:.3f}\n{:.3f}, {:.3f}".format(*twin["perplexity"]),
    "difference to plain": lambda twin: "{:+.3f}\n{:+.3f}, {:+.3f}".format(
        *twin["difference_to_plain"]
    ),
    "state zeroed": lambda twin: f"{twin['zeroed'][0]:.3f}",
    "another part's state": lambda twin: f"{twin['other'][0]:.3f}",
    "added parameters": lambda twin: f"{twin['added_parameters']:,}",
    "state, bytes": lambda twin: f"{twin['state_bytes']:,}",
    "training, tokens/s": lambda twin: f"{twin['training_tokens_per_second']:,}",
}


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[str], Report]]:
    """A bar on a terminal, elsewhere a line for every tenth of the work."""
    bar = Progress(
        TextColumn("{task.description:14}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%  {task.fields[now]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    started, done = time.perf_counter(), 0
    with bar:
        task = bar.add_task("", total=total, now="")

        def report(name: str, loss: float, speed: float) -> None:
            nonlocal done
            done += 1
            now = f"loss {loss:.3f}, {speed:,.0f} tokens/s"
            bar.update(task, description=name, completed=done, now=now)
            if not console.is_terminal and done * 10 // total > (done - 1) * 10 // total:
                left = (time.perf_counter() - started) / done * (total - done)
                console.print(f"{name}: {done / total:.0%}, {now}, {left:.0f} s left")

        yield lambda name: lambda loss, speed: report(name, loss, speed)


def show(results: dict[str, dict[str, Any]], whole: dict[str, Any], console: Console) -> None:
    table = Table(
        title="Held-out perplexity a byte",
        title_justify="left",
        caption="In the second line the 95% interval from drawing blocks of the held-out text anew;\n"
        "another training seed is not in it.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("")
    for name in results:
        table.add_column(name, justify="right", no_wrap=True)
    for label, cell in ROWS.items():
        of_state = label not in ("perplexity", "training, tokens/s")
        cells = ["-" if of_state and name == "plain" else cell(results[name]) for name in results]
        table.add_row(label, *cells)
    console.print(table)
    for name, twin in results.items():
        if name != "plain":
            console.print(f"{name}: {verdict(twin, results['plain']['perplexity'][0])}")
    console.print(
        f"\nThe held-out text in one call, {whole['tokens']:,} bytes: the stock model stops "
        f"({whole['stock_error']}); the {whole['twin']} twin reads all of it (perplexity "
        f"{whole['perplexity']:.3f}) and goes on from a state of {whole['state_bytes']:,} bytes."
    )


def verdict(twin: dict[str, Any], plain: float) -> str:
    """What the intervals say of a twin, in a sentence."""
    difference, low, high = twin["difference_to_plain"]
    worse, least, _ = twin["other_difference"]
    share = f"{abs(difference) / plain:.1%}"
    used = f"another part's state costs {worse / twin['perplexity'][0]:.1%}"
    if high < 0 and least > 0:
        return f"the state helps: perplexity {share} below plain, and {used}."
    if high < 0:
        return (
            f"perplexity {share} below plain, but not through what the state holds: another "
            "part's state serves as well."
        )
    told = f"perplexity {share} above plain" if low > 0 else "no difference to plain can be told"
    read = f"the state is read ({used})" if least > 0 else "what the state holds is not used"
    return f"{told} at this size and in this time; {read}."
