"""Shared by the benchmarks of a training step: their options, and the timing of steps."""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch


def parser_of(about: str, cases: Sequence[str], repeats: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--cases", nargs="+", default=cases, choices=cases)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--report", action="store_true", help="print the table of --output and stop"
    )
    return parser


def timed(
    step: Callable[[int], None], warm_up: int, repeats: int, device: torch.device
) -> dict[str, Any]:
    """Seconds of each measured step, and the peak memory over them.

    `step` receives its number. Warm-up steps come first: they compile, select kernels, and start
    without a state.
    """
    cuda = device.type == "cuda"
    seconds = []
    for number in range(warm_up + repeats):
        if number == warm_up and cuda:
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        step(number)
        if cuda:
            torch.cuda.synchronize()
        if number >= warm_up:
            seconds.append(time.perf_counter() - started)
    return {
        "seconds": seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else None,
    }
