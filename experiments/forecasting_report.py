"""What came of `forecasting_table.py`: a record and the table, beside the numbers of three papers.

    python experiments/forecasting_report.py runs/table --record results/forecasting

Cells are means over seeds with 95% intervals (Student's t); the difference of RSA-Informer to Informer
is paired by seed. With one seed its interval is the paired one over blocks of the test windows.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from spread import with_spread

from holdover.evaluate.intervals import Resampled
from holdover.results import provenance, write_record

RECORD = "forecasting.json"
METRICS = ("mse", "mae")
# MSE and MAE as printed: Informer and RSA-Informer of the RSA paper, then of its reproduction (which ran
# out of memory in four cells), then the original Informer.
PUBLISHED: dict[str, dict[int, tuple[Any, ...]]] = {
    "ETTh1": {
        24: ((0.762, 0.632), (0.414, 0.450), (0.679, 0.590), (0.632, 0.568), (0.577, 0.549)),
        48: ((1.006, 0.763), (0.467, 0.493), (0.935, 0.724), (0.908, 0.714), (0.685, 0.625)),
        168: ((1.141, 0.823), (0.753, 0.659), (1.464, 1.000), (1.265, 0.886), (0.931, 0.752)),
        336: ((1.416, 0.987), (0.895, 0.755), (1.645, 1.071), (1.902, 1.158), (1.128, 0.873)),
    },
    "ETTh2": {
        24: ((2.558, 1.253), (1.264, 0.879), (0.951, 0.777), (1.091, 0.840), (0.720, 0.665)),
        48: ((2.487, 1.268), (1.878, 1.067), (2.584, 1.300), (1.465, 0.970), (1.457, 1.001)),
        168: ((2.869, 1.324), (2.830, 1.301), (2.534, 1.259), (3.658, 1.559), (3.489, 1.515)),
        336: ((2.055, 1.113), (2.113, 1.124), (2.292, 1.195), (2.331, 1.222), (2.723, 1.340)),
    },
    "ETTm1": {
        24: ((0.536, 0.511), (0.534, 0.507), (0.695, 0.6114), (0.7411, 0.643), (0.323, 0.369)),
        48: ((0.781, 0.633), (0.644, 0.612), (0.782, 0.648), (0.747, 0.744), (0.494, 0.503)),
        96: ((0.823, 0.697), (0.732, 0.665), (1.088, 0.817), (1.313, 0.935), (0.678, 0.614)),
        288: ((1.371, 0.945), (0.835, 0.710), None, None, (1.056, 0.786)),
    },
    "WTH": {
        24: ((0.316, 0.371), (0.328, 0.380), (0.886, 0.720), (0.992, 0.765), (0.335, 0.381)),
        48: ((0.606, 0.566), (0.432, 0.464), (0.555, 0.546), (0.490, 0.502), (0.395, 0.459)),
        168: ((1.009, 0.771), (0.862, 0.702), (0.643, 0.598), (0.853, 0.699), (0.608, 0.567)),
        336: ((1.096, 0.801), (0.846, 0.697), None, None, (0.702, 0.620)),
    },
}
ARMS = ("informer", "rsa-informer", "dlinear", "repeat")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of forecasting_table.py")
    parser.add_argument("--record", type=Path, required=True, metavar="DIR")
    parser.add_argument("--order", default="shuffled")
    options = parser.parse_args()
    record = summarise(options.runs, options.order)
    name = RECORD if options.order == "shuffled" else f"{options.order}-{RECORD}"
    write_record(options.record / name, record)
    print(table(record))


def summarise(runs: Path, order: str) -> dict[str, Any]:
    found = []
    for path in sorted(runs.glob("*/eval/forecast_eval.json")):
        name, horizon, arm, way, seed = named(path.parent.parent.name)
        if way != order:
            continue
        evaluation = json.loads(path.read_text())
        cell = {"data": name, "horizon": int(horizon), "seed": int(seed)}
        found.append(
            {**cell, "arm": arm, **scores(evaluation["rows"][0]), **told(path, evaluation)}
        )
        if arm == "informer":
            repeated = next(row for row in evaluation["rows"] if row["kind"] == "repeat")
            found.append({**cell, "arm": "repeat", **scores(repeated)})
    return {
        "record": "forecasting table",
        "order": order,
        "runs": found,
        "provenance": provenance(),
    }


def named(folder: str) -> tuple[str, str, str, str, str]:
    """data-horizon-arm-order-seed, where an arm may hold a dash."""
    name, horizon, rest = folder.split("-", 2)
    arm, way, seed = rest.rsplit("-", 2)
    return name, horizon, arm, way, seed


def scores(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **{metric: row["scaled"][metric] for metric in METRICS},
        "windows": row["windows"],
        "per_unit": row["per_unit"],
    }


def told(path: Path, evaluation: dict[str, Any]) -> dict[str, Any]:
    run = json.loads((path.parent.parent / "holdover_run.json").read_text())
    return {
        "config": evaluation["model"]["config"],
        "peak_memory": evaluation["rows"][0].get("peak_memory"),
        "commit": run["provenance"]["commit"],
        "device": run["provenance"]["device"],
    }


def table(record: dict[str, Any]) -> str:
    """In Markdown, one line for each data set and horizon, MSE / MAE in every cell."""
    published = ("paper", "RSA in it", "reproduction", "RSA in it", "original Informer")
    columns = ["data", "horizon", *ARMS, "RSA above Informer (MSE)", *published]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, horizons in PUBLISHED.items():
        for horizon, known in horizons.items():
            runs = [r for r in record["runs"] if (r["data"], r["horizon"]) == (name, horizon)]
            if not runs:
                continue
            cells = [name, str(horizon)]
            cells += [
                both(*(with_spread(of(runs, arm, metric)) for metric in METRICS)) for arm in ARMS
            ]
            cells.append(difference(runs))
            cells += ["X" if pair is None else both(*map(str, pair)) for pair in known]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def of(runs: list[dict[str, Any]], arm: str, metric: str) -> list[float]:
    return [run[metric] for run in runs if run["arm"] == arm]


def both(*values: str) -> str:
    return " / ".join(value for value in values if value)


def difference(runs: list[dict[str, Any]]) -> str:
    """RSA-Informer's MSE above Informer's, paired."""
    pairs = [
        (rsa, plain)
        for rsa in runs
        for plain in runs
        if (rsa["arm"], plain["arm"], rsa["seed"]) == ("rsa-informer", "informer", plain["seed"])
    ]
    if not pairs:
        return ""
    if len(pairs) > 1:
        return with_spread([rsa["mse"] - plain["mse"] for rsa, plain in pairs], "{:+.3f}")
    rsa, plain = (run["per_unit"] for run in pairs[0])
    squares = np.array(rsa["squared"]) - np.array(plain["squared"])
    resampled = Resampled(np.arange(len(squares)), seed=0)
    value, low, high = resampled.interval(squares, np.array(rsa["targets"]), transform=lambda x: x)
    return f"{value:+.3f}" if low is None else f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


if __name__ == "__main__":
    main()
