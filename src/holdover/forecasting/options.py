"""Settings of training a forecaster; the defaults are Informer's."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..training.options import LoopOptions
from .data.options import SeriesOptions

ALIASES = {"lr": "learning_rate"}
# The names in models/registry.py, and those with a decoder; a test compares them.
FORECASTERS = ("informer", "dlinear", "lstm", "repeat", "seasonal")
WITH_DECODER = ("informer",)


@dataclass(frozen=True, kw_only=True)
class ForecastOptions(LoopOptions, SeriesOptions):
    """Settings of the forecaster, its batches and its training."""

    aliases = ALIASES

    model: str = ""
    """Forecaster to train: informer, dlinear, lstm, repeat or seasonal."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Changes to its configuration, as in d_model=64,rsa=true."""
    label_len: int | None = None
    """For informer: observed rows that its decoder reads again; defaults to half of past."""
    rows: int = 32
    """Windows per batch."""
    order: Literal["shuffled", "sequential"] = "shuffled"
    """Order of the training windows: shuffled anew in every epoch, or as in the file."""
    replay: bool = True
    """On a GPU: record the first step's kernels and replay them (a CUDA graph), so that Python
    does not start hundreds of them in every step."""
    check_compiled: bool = True
    """With compile: compare the compiled gradients with the eager ones before the first step and after
    steps 100, 1,000, 10,000, ..., and refuse wrong ones."""
    output: Path = Path("runs/forecast")
    """Folder of the run: checkpoints, log.jsonl, settings."""
    learning_rate: float = 1e-4
    """Learning rate of all weights."""
    warm_up: int = 0
    """Steps over which the learning rate rises from zero."""
    schedule: Literal["constant", "linear", "cosine", "halving"] = "halving"
    """Learning rate after the warm-up: constant, halved after every epoch, or falling to zero at the
    last step that epochs, max_steps and max_tokens allow."""
    clip: float | None = None
    """Largest norm of the gradient; none does not clip."""
    epochs: int = 6
    """Passes over the training windows."""
    max_tokens: int | None = None
    """Stop after this many rows; a row counts once for every window that contains it."""
    validate_every: int | None = None
    """Rows between validations; none validates at the end of every epoch."""
    seed: int = 0
    """Seed for weights, dropout and the order of windows."""

    def __post_init__(self) -> None:
        LoopOptions.__post_init__(self)
        SeriesOptions.__post_init__(self)
        if self.model not in FORECASTERS:
            raise ValueError(
                f"model={self.model!r} is not a forecaster: choose from {', '.join(FORECASTERS)}."
            )
        self.check_at_least(rows=1)
        if self.label_len is not None and self.model not in WITH_DECODER:
            raise ValueError(
                f"label_len={self.label_len} is for a decoder, and {self.model} has none: leave it out."
            )
        if self.compile and self.model != "informer":
            raise ValueError(
                f"compile=True is for informer, and {self.model} is small: leave it out."
            )
        if self.shard:
            raise ValueError(
                "shard=True is for large models, and a forecaster is small: leave it out."
            )
        if self.added_learning_rate != LoopOptions.added_learning_rate:
            raise ValueError(
                "added_learning_rate is for weights added to a pretrained model, and a forecaster is "
                "trained as a whole: leave it out."
            )
