"""The progress of a run, and when the run is over."""

import math
from dataclasses import dataclass

from .options import LoopOptions
from .task import Task


@dataclass
class TrainProgress:
    """The progress of a run; its fields are saved in every checkpoint."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    without_better: int = 0
    validated_at: int = 0
    finished: str | None = None


def why_over(options: LoopOptions, progress: TrainProgress, minutes: float) -> str | None:
    """Why the run is over; None while it goes on."""
    if progress.epoch >= options.epochs:
        return f"{options.epochs} epochs were read"
    if options.patience is not None and progress.without_better >= options.patience:
        return f"{options.patience} validations brought nothing better"
    if options.max_steps is not None and progress.step >= options.max_steps:
        return f"{progress.step:,} steps were made"
    if options.max_tokens is not None and progress.tokens >= options.max_tokens:
        return f"{progress.tokens:,} tokens were read"
    if options.max_time is not None and minutes >= options.max_time:
        return f"{minutes:.1f} minutes have passed"
    return None


def total_steps(options: LoopOptions, task: Task) -> int:
    """Steps until the limits that are known beforehand (epochs differ by a batch at most)."""
    batches = task.length(0)
    steps = -(-batches * options.epochs // options.accumulate)
    if options.max_tokens is not None:
        tokens_per_step = max(task.tokens() * options.accumulate / batches, 1)
        steps = min(steps, math.ceil(options.max_tokens / tokens_per_step))
    return steps if options.max_steps is None else min(steps, options.max_steps)
