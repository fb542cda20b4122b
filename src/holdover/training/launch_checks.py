"""What the launcher of several processes asks for, where it differs from what a run is told."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..runs.launch import start
from ..runs.provenance import choose_device
from .options import LoopOptions

# Set by accelerate launch, from its flags or its configuration file.
ACCELERATE_SHARDS = "ACCELERATE_USE_FSDP"
ACCELERATE_PRECISION = "ACCELERATE_MIXED_PRECISION"
# Lets all processes but the first open models without their weights.
EMPTY_MODELS = "FSDP_CPU_RAM_EFFICIENT_LOADING"


def wants_shards(options: LoopOptions) -> bool:
    return options.shard or os.environ.get(ACCELERATE_SHARDS, "").lower() == "true"


@contextmanager
def without_accelerates_sharding() -> Iterator[None]:
    """Inside, accelerate does not prepare to shard a model itself: it would gather the weights anew for
    every window of a step."""
    # For the rest of the process: transformers would leave weights out that accelerate never sends.
    os.environ[EMPTY_MODELS] = "false"
    asked = os.environ.pop(ACCELERATE_SHARDS, None)
    try:
        yield
    finally:
        if asked is not None:
            os.environ[ACCELERATE_SHARDS] = asked


def start_processes(options: Any, arguments: Sequence[str]) -> int:
    """Run a command in as many processes as its options say; returns their exit code."""
    check_processes(options, options.processes, options.processes)
    return start(arguments, options.processes, options.output)


def check_processes(options: Any, processes: int, on_this_machine: int) -> None:
    """Refuse what several processes cannot do with these settings, before they begin to talk."""
    if options.rows < processes:
        raise ValueError(
            f"rows={options.rows} cannot be dealt out to {processes} processes, each of which reads at "
            "least one: give more rows, or start fewer processes."
        )
    gpus = torch.cuda.device_count()
    if choose_device(options.device).type == "cuda" and on_this_machine > gpus:
        raise ValueError(
            f"{on_this_machine} processes of this machine would share {gpus} GPUs: start one process a "
            "GPU, or give --device cpu."
        )
    precision = os.environ.get(ACCELERATE_PRECISION, "no")
    if precision != "no" and not (precision == "bf16" and options.bf16):
        raise ValueError(
            f"accelerate was told to use mixed precision {precision}, and this run was not: give "
            "--mixed_precision no to accelerate launch, and --bf16 to holdover for bfloat16."
        )
    if options.compile and wants_shards(options):
        raise ValueError(
            "compile does not go with sharded weights: leave --compile or --shard out."
        )
