"""Compares predictions with the records of real runs.

The defaults for utilisation and launch time are medians of these same records, so the comparison of
speeds only shows how well two constants fit all of them. No constant of memory or communication was
fitted to a record.
"""

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import RecurrenceConfig
from .costs import Communication, communication_at, flops_a_token, memory, step_seconds
from .hardware import HARDWARE, Hardware
from .model_profile import activation_bytes, profile_model
from .options import UTILISATION, PlannedRun

GIB = 2**30
# With fewer tokens per window, over all rows, the GPU waits for kernel launches.
LARGE_WINDOW = 4096


@dataclass(frozen=True)
class RunCheck:
    """Prediction and measurement for one record of a GPU."""

    name: str
    case: str
    rows: int
    memory: float
    memory_measured: float
    speed: float
    speed_measured: float
    large: bool
    utilisation: float  # measured
    launch_seconds: float  # measured, per layer and window


@dataclass(frozen=True)
class CommunicationCheck:
    """Seconds per step for one way to train in several processes: copies or shards."""

    case: str
    one_process: float  # one process with all rows
    silent: float  # several processes without communication
    predicted: float
    measured: float


def check(folders: Sequence[Path]) -> tuple[list[RunCheck], list[CommunicationCheck]]:
    """Compare all records in these folders."""
    runs: list[RunCheck] = []
    communications: list[CommunicationCheck] = []
    for folder in folders:
        paths = sorted(folder.glob("*.json"))
        if not paths:
            raise ValueError(
                f"--check: there are no records in {folder}. Give folders such as results/speed."
            )
        for path in paths:
            record = json.loads(path.read_text())
            kind = record.get("benchmark")
            if kind in ("speed", "training"):
                runs.append(_check_run(f"{folder.name}/{path.stem}", record))
            elif kind == "scaling":
                communications += _check_communication(record)
            else:
                raise ValueError(
                    f"--check: {path} is not a record of benchmarks/speed.py, training.py or scaling.py."
                )
    return runs, communications


def calibration(runs: Sequence[RunCheck]) -> tuple[float, float]:
    """Medians over the records: utilisation of large windows, seconds to launch a layer's kernels."""
    return (
        statistics.median(run.utilisation for run in runs if run.large),
        statistics.median(run.launch_seconds for run in runs if not run.large),
    )


def markdown(runs: Sequence[RunCheck], communications: Sequence[CommunicationCheck]) -> str:
    lines: list[str] = []
    if runs:
        lines += [
            "| record | rows | peak GiB predicted | measured | ratio | tokens/s predicted | measured | "
            "ratio |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for run in sorted(runs, key=lambda run: (-run.rows, run.name)):
        lines.append(
            f"| {run.name} | {run.rows} | {run.memory / GIB:.2f} | {run.memory_measured / GIB:.2f} | "
            f"{run.memory / run.memory_measured:.2f} | {run.speed:,.0f} | {run.speed_measured:,.0f} | "
            f"{run.speed / run.speed_measured:.2f} |"
        )
    if communications:
        lines += [
            "",
            "| mode | one process, all rows | two, no communication | predicted | measured | ratio |",
            "|---|---|---|---|---|---|",
        ]
    for check in communications:
        lines.append(
            f"| {check.case} | {1000 * check.one_process:.0f} ms | {1000 * check.silent:.0f} ms | "
            f"{1000 * check.predicted:.0f} ms | {1000 * check.measured:.0f} ms | "
            f"{check.predicted / check.measured:.2f} |"
        )
    return "\n".join(lines).strip()


def _shape(record: dict[str, Any]) -> dict[str, Any]:
    match = re.search(r"(\d+) layers x (\d+)", record["model"])
    assert match is not None, record["model"]
    layers, width = map(int, match.groups())
    return {
        "n_layer": layers,
        "n_embd": width,
        "n_head": width // 64,
        "vocab_size": record.get("vocabulary", 50257),
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def _check_run(name: str, record: dict[str, Any]) -> RunCheck:
    trained = record["benchmark"] == "training"
    given: dict[str, Any] | None = record.get("settings")
    stock = not trained and given is None
    settings: dict[str, Any]
    if trained:
        settings = {"carry": record["recurrence"], "recompute": record["recompute"]}
    else:
        settings = {"carry": "none"} if given is None else given
    recurrence = RecurrenceConfig(window=record["window"], **settings)
    assert recurrence.recompute != "auto"
    shape = _shape(record)
    model = profile_model("gpt2", shape, recurrence)
    run = PlannedRun(
        rows=record["rows"] if trained else record["documents"],
        windows=record["windows"],
        window=record["window"],
        recompute=recurrence.recompute,
        precision="autocast" if trained else "bfloat16",
        compiled=record["compiled"],
        optimizer=trained,
        stock=stock,
    )
    measured = record["train"]
    hardware = _hardware(measured.get("device", record["provenance"]["device"]))
    activations = activation_bytes("gpt2", shape, run.precision)
    nothing_sent = Communication(0.0, 0.0, 0.0, 1.0)
    seconds = step_seconds(model, run, hardware, UTILISATION, nothing_sent).step
    per_window = run.tokens_a_batch / measured["tokens_per_second"] / run.windows
    passes = 4 / 3 if run.recompute == "window" else 1.0
    flops = sum(flops_a_token(model, run).values()) * measured["tokens_per_second"]
    return RunCheck(
        name=name,
        case="train" if trained else record["case"],
        rows=run.rows,
        memory=sum(memory(model, activations, run).values()),
        memory_measured=measured["peak_bytes"],
        speed=run.tokens_a_batch / seconds,
        speed_measured=measured["tokens_per_second"],
        large=run.rows * run.window >= LARGE_WINDOW,
        utilisation=flops / hardware.peak,
        launch_seconds=per_window / model.layers / passes,
    )


def _hardware(device: str) -> Hardware:
    for name, row in HARDWARE.items():
        if name.upper() in device:
            return row
    raise ValueError(
        f"--check: a record was made on {device}, which is not in the table of GPUs: "
        f"{', '.join(HARDWARE)}."
    )


def _check_communication(record: dict[str, Any]) -> list[CommunicationCheck]:
    """Predict a step from the same step without communication and the speed of the collectives."""
    shape = _shape(record) | {"n_positions": record["window"]}
    model = profile_model("gpt2", shape, RecurrenceConfig(window=record["window"]))
    assert model.parameters == record["parameters"]
    silent = record["side_by_side"]["fastest"]
    others = (record["processes"] - 1) / record["processes"]
    size = record["collective_bytes"]
    speeds = {
        "copies": 2 * others * size / record["all_reduce"]["fastest"],
        "shards": 2
        * others
        * size
        / (record["all_gather"]["fastest"] + record["reduce_scatter"]["fastest"]),
    }
    checks = []
    for case, speed in speeds.items():
        run = PlannedRun(
            rows=record["rows"] // record["processes"],
            windows=record["windows"],
            window=record["window"],
            processes=record["processes"],
            shard=case == "shards",
        )
        # Processes that compute and send on the same cores hide nothing.
        predicted = silent + communication_at(model, run, speed).exposed(hiding=0.0)
        one_process, measured = record["one_process"]["fastest"], record[case]["fastest"]
        checks.append(CommunicationCheck(case, one_process, silent, predicted, measured))
    return checks
