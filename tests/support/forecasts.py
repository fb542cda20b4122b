"""Small forecasters through the command line: a seasonal CSV, what to type, what was left behind."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from csvs import hourly, wide
from holdover.cli import entry as cli
from runs import flags_of

COLUMNS = ("load", "temperature")
INFORMER = "d_model=16,n_heads=8,d_ff=32,dropout=0.0"
PAST, AHEAD = 24, 6


def seasonal_values(rows: int, seed: int = 0) -> np.ndarray:  # [rows, 2]
    """Days of 24 hours in two columns of different scales, and a little noise."""
    noise = np.random.default_rng(seed).normal(size=(rows, 2))
    day = 2 * np.pi * np.arange(rows) / 24
    return np.stack([100 + 20 * np.sin(day), 5 + np.cos(day)], 1) + noise * [1.0, 0.05]


def seasonal_csv(path: Path, rows: int = 300) -> Path:
    return wide(path, hourly(rows), seasonal_values(rows), list(COLUMNS))


def command(folder: Path, *words: str, resume: bool = False, **settings: Any) -> list[str]:
    """Arguments that train a small DLinear on folder/power.csv into folder/run."""
    data = folder / "power.csv"
    if not data.exists():
        seasonal_csv(data)
    chosen: dict[str, Any] = {
        "model": "dlinear",
        "data": data,
        "past": PAST,
        "ahead": AHEAD,
        "lr": 1e-2,
        "epochs": 2,
        "device": "cpu",
        "output": folder / "run",
        **settings,
    }
    return ["forecast", "train", *flags_of(chosen), *words, *(["--resume"] if resume else [])]


def train(folder: Path, *words: str, **settings: Any) -> Path:
    """Run it to its end; returns its folder."""
    assert cli.main(command(folder, *words, **settings)) == 0
    return Path(settings.get("output", folder / "run"))


def evaluate(model: Path, **settings: Any) -> dict[str, Any]:
    """The record of an evaluation, read from its file."""
    output = model.parent / f"{model.name}-eval"
    given = {"model": model, "output": output, "device": "cpu", "plots": False, **settings}
    assert cli.main(["forecast", "eval", *flags_of(given)]) == 0
    return json.loads((Path(given["output"]) / "forecast_eval.json").read_text())


def mse_of(record: dict[str, Any]) -> dict[str, float]:
    return {row["name"]: row["scaled"]["mse"] for row in record["rows"]}
