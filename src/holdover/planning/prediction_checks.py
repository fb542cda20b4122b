"""Predictions beside measurements: records of runs that were made, and what the plan says of them.

Utilisation and the seconds of launches are taken from the same records (their medians), so speeds only
show how far one number each carries; memory and talk have nothing that was fitted to their records.
"""

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import RecurrenceConfig
from .communication import Talk, talk_at
from .flops import flops_a_token
from .hardware import HARDWARE, Hardware
from .memory import memory
from .model_profile import kept_bytes, profile_model
from .options import UTILISATION
from .run import PlannedRun
from .seconds import step_seconds

GIB = 2**30
# Windows of fewer tokens leave a GPU waiting for launches.
LARGE = 4096


@dataclass(frozen=True)
class Checked:
    """One record of a GPU: what was predicted and what was measured."""

    name: str
    case: str
    rows: int
    memory: float
    memory_measured: float
    speed: float
    speed_measured: float
    large: bool
    utilisation: float  # that was reached
    launch_seconds: float  # a layer and window


@dataclass(frozen=True)
class CheckedTalk:
    """One way to hold a model in several processes."""

    case: str
    one_process: float  # seconds of its step with all rows
    alone: float  # seconds of a step without talk
    predicted: float
    measured: float


def check(folders: Sequence[Path]) -> tuple[list[Checked], list[CheckedTalk]]:
    """All records of some folders."""
    checked: list[Checked] = []
    talks: list[CheckedTalk] = []
    for folder in folders:
        paths = sorted(folder.glob("*.json"))
        if not paths:
            raise ValueError(
                f"There are no records in {folder}: give folders such as results/speed."
            )
        for path in paths:
            record = json.loads(path.read_text())
            kind = record.get("benchmark")
            if kind in ("speed", "training"):
                checked.append(_checked(f"{folder.name}/{path.stem}", record))
            elif kind == "scaling":
                talks += _checked_talk(record)
            else:
                raise ValueError(f"{path} is no record of speed, training or scaling.")
    return checked, talks


def calibration(checked: Sequence[Checked]) -> tuple[float, float]:
    """Utilisation of large windows, and seconds of a layer's launches: medians of records."""
    return (
        statistics.median(one.utilisation for one in checked if one.large),
        statistics.median(one.launch_seconds for one in checked if not one.large),
    )


def markdown(checked: Sequence[Checked], talks: Sequence[CheckedTalk]) -> str:
    lines: list[str] = []
    if checked:
        lines += [
            "| record | rows | peak GiB predicted | measured | ratio | tokens/s predicted | measured | "
            "ratio |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for one in sorted(checked, key=lambda one: (-one.rows, one.name)):
        lines.append(
            f"| {one.name} | {one.rows} | {one.memory / GIB:.2f} | {one.memory_measured / GIB:.2f} | "
            f"{one.memory / one.memory_measured:.2f} | {one.speed:,.0f} | {one.speed_measured:,.0f} | "
            f"{one.speed / one.speed_measured:.2f} |"
        )
    if talks:
        lines += [
            "",
            "| held as | one process, all rows | two, without talk | predicted | measured | ratio |",
            "|---|---|---|---|---|---|",
        ]
    for talked in talks:
        lines.append(
            f"| {talked.case} | {1000 * talked.one_process:.0f} ms | {1000 * talked.alone:.0f} ms | "
            f"{1000 * talked.predicted:.0f} ms | {1000 * talked.measured:.0f} ms | "
            f"{talked.predicted / talked.measured:.2f} |"
        )
    return "\n".join(lines).strip()


def _shape(record: dict[str, Any]) -> dict[str, Any]:
    found = re.search(r"(\d+) layers x (\d+)", record["model"])
    assert found is not None, record["model"]
    layers, width = map(int, found.groups())
    return {
        "n_layer": layers,
        "n_embd": width,
        "n_head": width // 64,
        "vocab_size": record.get("vocabulary", 50257),
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }


def _checked(name: str, record: dict[str, Any]) -> Checked:
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
    kept = kept_bytes("gpt2", shape, run.precision)
    alone = Talk(0.0, 0.0, 0.0, 1.0)
    seconds = step_seconds(model, run, hardware, UTILISATION, alone).step
    per_window = run.tokens_a_batch / measured["tokens_per_second"] / run.windows
    passes = 4 / 3 if run.recompute == "window" else 1.0
    flops = sum(flops_a_token(model, run).values()) * measured["tokens_per_second"]
    return Checked(
        name=name,
        case="train" if trained else record["case"],
        rows=run.rows,
        memory=sum(memory(model, kept, run).values()),
        memory_measured=measured["peak_bytes"],
        speed=run.tokens_a_batch / seconds,
        speed_measured=measured["tokens_per_second"],
        large=run.rows * run.window >= LARGE,
        utilisation=flops / hardware.peak,
        launch_seconds=per_window / model.layers / passes,
    )


def _hardware(device: str) -> Hardware:
    for name, row in HARDWARE.items():
        if name.upper() in device:
            return row
    raise ValueError(f"The record's device {device} is not in the table of GPUs.")


def _checked_talk(record: dict[str, Any]) -> list[CheckedTalk]:
    """Steps with talk, from the step without and the speed of collectives of that size."""
    shape = _shape(record) | {"n_positions": record["window"]}
    model = profile_model("gpt2", shape, RecurrenceConfig(window=record["window"]))
    assert model.parameters == record["parameters"]
    alone = record["side_by_side"]["fastest"]
    others = (record["processes"] - 1) / record["processes"]
    size = record["collective_bytes"]
    speeds = {
        "copies": 2 * others * size / record["all_reduce"]["fastest"],
        "shards": 2
        * others
        * size
        / (record["all_gather"]["fastest"] + record["reduce_scatter"]["fastest"]),
    }
    found = []
    for case, speed in speeds.items():
        run = PlannedRun(
            rows=record["rows"] // record["processes"],
            windows=record["windows"],
            window=record["window"],
            processes=record["processes"],
            shard=case == "shards",
        )
        talk = talk_at(model, run, speed)
        # Processes that compute and send on the same cores hide nothing.
        predicted = alone + talk.exposed(hiding=0.0)
        found.append(
            CheckedTalk(
                case, record["one_process"]["fastest"], alone, predicted, record[case]["fastest"]
            )
        )
    return found
