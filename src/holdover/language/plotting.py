"""holdover plot and compare: training curves of several runs, and evaluations side by side."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..evaluation.compare import as_table
from ..evaluation.plots import training_curves
from ..runs.provenance import fresh_name
from ..storage import EVALUATION, check_content
from ..training.log import LOG, read_log
from .eval_report import write_plots
from .evaluation import RECORD


def plot(paths: Sequence[Path], output: Path, console: Console | None = None) -> list[Path]:
    """Plots of runs (folders with a log) and of evaluation records; returns what was written."""
    console = console or Console(highlight=False)
    runs: dict[str, list[dict[str, Any]]] = {}
    records: dict[str, dict[str, Any]] = {}
    for path in paths:
        log, record = path / LOG, path / RECORD if path.is_dir() else path
        if log.is_file():
            runs[fresh_name(path.name, runs)] = read_log(log)
        elif record.is_file():
            found = _evaluation(record)
            records[fresh_name(found["model"]["name"], records)] = found
        else:
            raise FileNotFoundError(
                f"{path} is no run (it has no {LOG}) and no evaluation (no {RECORD}): give folders that "
                "holdover train or holdover eval wrote."
            )
    written: list[Path] = []
    if runs:
        written += training_curves(output / "training", runs)
    if records:
        written += write_plots(output, records)
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True)
    return written


def compare(paths: Sequence[Path], console: Console | None = None) -> None:
    """Evaluations against the first of them, paired."""
    records: dict[str, dict[str, Any]] = {}
    for path in paths:
        record = path / RECORD if path.is_dir() else path
        if not record.is_file():
            raise FileNotFoundError(
                f"{path} is no evaluation (it has no {RECORD}): give folders that holdover eval wrote."
            )
        found = _evaluation(record)
        records[fresh_name(found["model"]["name"], records)] = found
    (console or Console(highlight=False)).print(as_table(records))


def _evaluation(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no evaluation record ({error}).") from error
    whole = isinstance(found, dict) and found.get("record") == "evaluation"
    if not whole or not {"model", "data", "rows"} <= set(found):
        raise ValueError(f"{path} is JSON, but no evaluation record of holdover eval.")
    return check_content(EVALUATION, found, path)
