"""Checks of a launch with several processes: launcher and settings must not contradict each other."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..runs.launch import start
from ..runs.provenance import choose_device
from .options import LoopOptions

# accelerate launch sets these, from its flags or its configuration file.
ACCELERATE_SHARDS = "ACCELERATE_USE_FSDP"
ACCELERATE_PRECISION = "ACCELERATE_MIXED_PRECISION"
# "true": all processes but the first open models without their weights.
EMPTY_MODELS = "FSDP_CPU_RAM_EFFICIENT_LOADING"


def wants_shards(options: LoopOptions) -> bool:
    return options.shard or os.environ.get(ACCELERATE_SHARDS, "").lower() == "true"


@contextmanager
def without_accelerates_sharding() -> Iterator[None]:
    """Inside, accelerate does not shard the model: it would gather the weights for every window."""
    # For the rest of the process: transformers would skip weights that accelerate never sends.
    os.environ[EMPTY_MODELS] = "false"
    before = os.environ.pop(ACCELERATE_SHARDS, None)
    try:
        yield
    finally:
        if before is not None:
            os.environ[ACCELERATE_SHARDS] = before


def start_processes(options: Any, arguments: Sequence[str]) -> int:
    """Run a command in `options.processes` processes; returns their exit code."""
    check_processes(options, options.processes, options.processes)
    return start(arguments, options.processes, options.output)


def check_processes(options: Any, processes: int, on_this_machine: int) -> None:
    """Refuse settings that several processes cannot work with, before they connect."""
    if options.rows < processes:
        raise ValueError(
            f"--rows {options.rows} is too few for {processes} processes, each of which reads at "
            "least one row: give more rows, or start fewer processes."
        )
    gpus = torch.cuda.device_count()
    if choose_device(options.device).type == "cuda" and on_this_machine > gpus:
        raise ValueError(
            f"{on_this_machine} processes of this machine would share {gpus} GPUs: start one process "
            "per GPU, or give --device cpu."
        )
    precision = os.environ.get(ACCELERATE_PRECISION, "no")
    if precision != "no" and not (precision == "bf16" and options.bf16):
        raise ValueError(
            f"accelerate launch asks for mixed precision {precision}, and this run does not: give "
            "--mixed_precision no to accelerate launch, and --bf16 to holdover for bfloat16."
        )
    if options.compile and wants_shards(options):
        raise ValueError("Sharded weights cannot be compiled: leave --compile or --shard out.")
