"""One driver for the evaluation verbs: device, output folder, record, console and progress."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..runs.processes import is_first, join, rank0_broadcast
from ..runs.provenance import (
    choose_device,
    fresh_name,
    make_folder,
    provenance,
    redact_paths,
    shown_name,
    write_record,
)
from ..runs.settings import as_dict
from ..storage import EVALUATION, VERSION_FIELD
from .intervals import Resampled

SECONDS_BETWEEN_LINES = 10.0
# Intervals over fewer units say little.
FEW_UNITS = 10


class Evaluation:
    """One evaluation: joins the other processes, makes the folder, and writes what rank 0 records.

    options: the verb's settings, with `device`, `output` and, for autocast, `bf16`.
    """

    def __init__(self, options: Any, console: Console | None = None) -> None:
        self.options = options
        self.device = join(choose_device(options.device).type == "cpu")
        self.console = console or Console(highlight=False)
        if not is_first():
            self.console = Console(quiet=True)
        rank0_broadcast(lambda: make_folder(options.output))

    def autocast(self) -> AbstractContextManager[Any]:
        """bfloat16 matrix products, if the options ask for them."""
        if not self.options.bf16:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def progress(self, label: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        return progress(self.console, label, total)

    def record(
        self,
        kind: str,
        model: Mapping[str, Any],
        data: Mapping[str, Any],
        rows: list[dict[str, Any]],
        notes: Sequence[str] | None = None,
        differences: Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """The record: results, together with everything that is needed to repeat them."""
        return {
            "record": kind,
            VERSION_FIELD: EVALUATION.version,
            "model": model,
            "data": data,
            **({} if notes is None else {"notes": notes}),
            "options": redact_paths(as_dict(self.options)),
            "rows": rows,
            **({} if differences is None else {"differences": differences}),
            "provenance": provenance(self.device),
        }

    def write(self, file: str, content: dict[str, Any]) -> None:
        if is_first():
            write_record(self.options.output / file, content)

    def finish(
        self,
        record: dict[str, Any],
        show: Callable[[dict[str, Any], Console], None],
        plot: Callable[[], Any] | None = None,
        written: str = "Record",
    ) -> dict[str, Any]:
        """Show the record, draw the plots, say where the files are; returns the record."""
        if is_first():
            show(record, self.console)
            if plot is not None:
                plot()
                written = f"{written} and plots"
            self.console.print(f"{written}: {self.options.output}", soft_wrap=True)
        return record


def about_training(run: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The training that a run's holdover_run.json describes, for an evaluation's record."""
    if run is None:
        return None
    return {
        "options": redact_paths(run["options"]),
        "data": run["data"],
        "provenance": run["provenance"],
    }


def row_names(model: str, against: Sequence[str], reserved: Sequence[str] = ()) -> list[str]:
    """Names for the rows of a table: the model's, then one for each other model, all different."""
    names = [shown_name(model)]
    for other in against:
        names.append(fresh_name(shown_name(other), [*names, *reserved]))
    return names


def difference(
    own: str, other: str, resampled: Resampled, measures: Mapping[str, Any], counts: Any = None
) -> dict[str, Any]:
    """The paired difference of two rows; measures: for each unit, the first row's less the other's."""
    means = {name: resampled.mean(values, counts) for name, values in measures.items()}
    return {"of": own, "above": other, **means}


@contextmanager
def progress(console: Console, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, elsewhere a line now and then."""
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
