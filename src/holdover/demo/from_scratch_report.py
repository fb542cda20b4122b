"""What holdover demo shows: its progress, and of its scores intervals, a table and sentences."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

DRAWS = 2000

Report = Callable[[float, float], None]


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


def compare(scores: dict[str, Tensor], plain: Tensor) -> dict[str, Any]:
    """Perplexities and differences, each with the bounds of its 95% interval."""
    own = scores["own"]
    return {
        "perplexity": with_interval(own),
        "difference_to_plain": with_interval(own, plain),
        "zeroed": with_interval(scores["zeroed"]),
        "other": with_interval(scores["other"]),
        "other_difference": with_interval(scores["other"], own),
    }


def with_interval(blocks: Tensor, less: Tensor | None = None) -> list[float]:
    """Perplexity, or difference of two on the same blocks, and bounds from drawing blocks anew."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(blocks), (DRAWS, len(blocks)), generator=generator)

    def of(index: Tensor | slice) -> Tensor:
        first = blocks[index].mean(-1).exp()
        return first if less is None else first - less[index].mean(-1).exp()

    bounds = of(drawn).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    return [round(value, 4) for value in (of(slice(None)).item(), *bounds.tolist())]


def show(results: dict[str, dict[str, Any]], console: Console) -> None:
    console.print(as_table(results))
    for name, twin in results.items():
        if name != "plain":
            console.print(f"{name}: {verdict(twin, results['plain']['perplexity'][0])}")
    name, twin = list(results.items())[-1]
    whole = twin["whole_text"]
    console.print(
        f"\nThe held-out text in one call, {whole['tokens']:,} bytes: the stock model stops "
        f"({whole['stock_error']}); the {name} twin reads all of it (perplexity "
        f"{whole['perplexity']:.3f}) and goes on from a state of {whole['state_bytes']:,} bytes."
    )


def as_table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table(
        title="Held-out perplexity a byte",
        title_justify="left",
        caption="Second lines: 95% intervals, from drawing blocks of the held-out text anew.\n"
        "They do not say what another training seed would change.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("", min_width=12)
    for name in results:
        table.add_column(name, justify="right", no_wrap=True)
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "perplexity": lambda twin: _interval(twin["perplexity"]),
        "difference to plain": lambda twin: _interval(twin["difference_to_plain"], "+"),
        "state zeroed": lambda twin: _number(twin["zeroed"][0]),
        "another part's state": lambda twin: _number(twin["other"][0]),
        "added parameters": lambda twin: f"{twin['added_parameters']:,}",
        "state, bytes": lambda twin: f"{twin['state_bytes']:,}",
        "training, tokens/s": lambda twin: f"{twin['training_tokens_per_second']:,}",
    }
    for label, cell in rows.items():
        of_state = label not in ("perplexity", "training, tokens/s")
        cells = ["-" if of_state and name == "plain" else cell(results[name]) for name in results]
        table.add_row(label, *cells)
    return table


def _interval(values: list[float], sign: str = "") -> str:
    value, low, high = (_number(value, sign) for value in values)
    return f"{value}\n{low}, {high}"


def _number(value: float, sign: str = "") -> str:
    size = abs(value)
    decimals = 3 if size < 10 else 2 if size < 100 else 1
    return f"{value:{sign}.{decimals}f}"


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
