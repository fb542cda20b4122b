"""Informer and RSA-Informer on ETT and Weather: the table of which a reproduction left cells empty.

    HOLDOVER_DATA=... python experiments/forecasting_table.py --output runs/table    (one seed, an H200)
    ... --seeds 0,1,2,3,4                                  every cell with a spread
    ... --data ETTh1 --order sequential                    windows in order, as the RSA paper reads them
    ... --data ETTh1 --horizons 24 --scale toy             two cores, a minute: to see it work

A run for each data set, horizon, forecaster and seed, --together of them side by side; what has a record
is left out, what was interrupted goes on. Lengths and layers are those of Informer's scripts, the heads
with a recurrence those of the RSA paper's result folders. Every test window is scored, with DLinear and
the last row repeated beside. `forecasting_report.py` makes the record and the table.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from side_by_side import holdover, train

# past, label_len, and where they differ from the defaults: factor, layers of encoder and decoder.
SCRIPTS: dict[str, dict[int, dict[str, int]]] = {
    "ETTh1": {
        24: {"past": 48, "label_len": 48, "factor": 3},
        48: {"past": 96, "label_len": 48},
        168: {"past": 168, "label_len": 168},
        336: {"past": 168, "label_len": 168},
    },
    "ETTh2": {
        24: {"past": 48, "label_len": 48},
        48: {"past": 96, "label_len": 96},
        168: {"past": 336, "label_len": 336, "e_layers": 3, "d_layers": 2},
        336: {"past": 336, "label_len": 168, "e_layers": 3, "d_layers": 2},
    },
    "ETTm1": {
        24: {"past": 672, "label_len": 96},
        48: {"past": 96, "label_len": 48},
        96: {"past": 384, "label_len": 384},
        288: {"past": 672, "label_len": 288},
    },
    "WTH": {
        24: {"past": 168, "label_len": 168, "e_layers": 3, "d_layers": 2},
        48: {"past": 96, "label_len": 96},
        168: {"past": 336, "label_len": 168, "e_layers": 3, "d_layers": 2},
        336: {"past": 720, "label_len": 168, "e_layers": 3, "d_layers": 2},
    },
}
# Heads with a recurrence: regular, cos, sin, and the dilated three. The cells whose folders do not
# exist have those of the cell before.
HEADS: dict[str, dict[int, list[int]]] = {
    "ETTh1": {
        24: [0, 2, 2, 0, 2, 2],
        48: [0, 2, 2, 2, 1, 1],
        168: [0, 2, 2, 2, 1, 1],
        336: [4, 0, 0, 4, 0, 0],
    },
    "ETTh2": {
        24: [4, 2, 2, 0, 0, 0],
        48: [0, 2, 2, 0, 2, 2],
        168: [4, 2, 2, 0, 0, 0],
        336: [0, 2, 2, 0, 2, 2],
    },
    "ETTm1": {
        24: [0, 0, 0, 0, 4, 4],
        48: [0, 2, 2, 0, 2, 2],
        96: [0, 2, 2, 0, 2, 2],
        288: [0, 2, 2, 0, 2, 2],
    },
    "WTH": {
        24: [0, 0, 0, 0, 4, 4],
        48: [0, 2, 2, 0, 2, 2],
        168: [0, 2, 2, 0, 2, 2],
        336: [0, 2, 2, 0, 2, 2],
    },
}
# Not published: every dilated head takes the next of these in turn.
DILATIONS = (6, 6, 12, 12)
ARMS = ("informer", "rsa-informer", "dlinear")
TOY = {"epochs": 1, "max_steps": 3}
TOY_SHAPE = {"d_model": 16, "n_heads": 8, "d_ff": 32}
# Seconds between looks at the runs.
PATIENCE = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", default=",".join(SCRIPTS))
    parser.add_argument("--horizons", help="default: the four of each data set")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--order", choices=("shuffled", "sequential"), default="shuffled")
    parser.add_argument("--scale", choices=("real", "toy"), default="real")
    parser.add_argument("--together", type=int, default=12, help="runs side by side")
    options = parser.parse_args()
    waiting = [
        folder_and_settings(options, int(seed), name, horizon, arm)
        for seed, name in product(options.seeds.split(","), options.data.split(","))
        for horizon in chosen_horizons(options, name)
        for arm in options.arms.split(",")
    ]
    for line in side_by_side([life(*run) for run in waiting], options.together):
        print(line, flush=True)


def chosen_horizons(options: argparse.Namespace, name: str) -> list[int]:
    if options.horizons is None:
        return list(SCRIPTS[name])
    return [int(horizon) for horizon in options.horizons.split(",")]


def folder_and_settings(
    options: argparse.Namespace, seed: int, name: str, horizon: int, arm: str
) -> tuple[Path, dict[str, Any]]:
    script = dict(SCRIPTS[name][horizon])
    settings: dict[str, Any] = {
        "data": name,
        "past": script.pop("past"),
        "ahead": horizon,
        "seed": seed,
        "order": options.order,
        "model": arm.removeprefix("rsa-"),
        "keep": 1,
        "log_every": 200,
    }
    label_len = script.pop("label_len")
    if arm == "dlinear":
        settings |= {"learning_rate": 1e-3}
    else:
        shape: dict[str, Any] = script
        if arm == "rsa-informer":
            heads = HEADS[name][horizon]
            dilated = [DILATIONS[number % len(DILATIONS)] for number in range(sum(heads[3:]))]
            shape |= {"rsa": True, "rem_counts": heads, "rem_dilations": dilated}
        settings |= {"label_len": label_len, "shape": shape}
        if options.scale == "toy":
            shape |= TOY_SHAPE
    if options.scale == "toy":
        settings |= TOY
    return options.output / f"{name}-{horizon}-{arm}-{options.order}-{seed}", settings


def life(folder: Path, settings: dict[str, Any]) -> Iterator[Any]:
    """The processes of one run, each begun when the one before has ended well."""
    if (folder / "eval" / "forecast_eval.json").exists():
        return
    if not (folder / "finished").exists():
        yield train(folder, settings, verb=("forecast", "train"))
        (folder / "finished").touch()
    words = ["--model", str(folder), "--output", str(folder / "eval"), "--no-plots"]
    yield holdover("forecast", "eval", *words)


def side_by_side(lives: list[Iterator[Any]], together: int) -> Iterator[str]:
    """Run them, so many at a time; a life whose process fails ends there, and it is said."""
    waiting, running, ended = list(lives), [], 0
    while waiting or running:
        while waiting and len(running) < together:
            running.append((waiting.pop(0), None))
        going = []
        for lived, process in running:
            if process is not None and process.poll() is None:
                going.append((lived, process))
                continue
            failed = process is not None and process.returncode != 0
            following = None if failed else next(lived, None)
            if following is not None:
                going.append((lived, following))
                continue
            ended += 1
            yield f"{ended} of {len(lives)} runs have {'failed' if failed else 'ended'}"
        running = going
        time.sleep(PATIENCE)


if __name__ == "__main__":
    main()
