"""holdover plot and holdover compare: training curves of several runs, and evaluations compared."""

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
    """Plots of runs (folders with a log) and of evaluation records; returns the files."""
    console = console or Console(highlight=False)
    runs: dict[str, list[dict[str, Any]]] = {}
    records: dict[str, dict[str, Any]] = {}
    for path in paths:
        log, record = path / LOG, path / RECORD if path.is_dir() else path
        if log.is_file():
            runs[fresh_name(path.name, runs)] = read_log(log)
        elif record.is_file():
            evaluation = _evaluation(record)
            records[fresh_name(evaluation["model"]["name"], records)] = evaluation
        else:
            raise FileNotFoundError(
                f"{path} is neither a run (it has no {LOG}) nor an evaluation (no {RECORD}): give "
                "folders that holdover train or holdover eval wrote."
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
    """Show the paired differences of evaluations from the first one."""
    records: dict[str, dict[str, Any]] = {}
    for path in paths:
        record = path / RECORD if path.is_dir() else path
        if not record.is_file():
            raise FileNotFoundError(
                f"{path} is not an evaluation (it has no {RECORD}): give folders that holdover eval "
                "wrote."
            )
        evaluation = _evaluation(record)
        records[fresh_name(evaluation["model"]["name"], records)] = evaluation
    (console or Console(highlight=False)).print(as_table(records))


def _evaluation(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not an evaluation record ({error}).") from error
    is_evaluation = isinstance(record, dict) and record.get("record") == "evaluation"
    if not is_evaluation or not {"model", "data", "rows"} <= set(record):
        raise ValueError(f"{path} is JSON, but not a record of holdover eval.")
    return check_content(EVALUATION, record, path)
