"""Settings of training a forecaster; the defaults are Informer's."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..runs.settings import build
from ..training.options import LoopOptions
from .data.options import SeriesOptions
from .models.registry import FORECASTERS

ALIASES = {"lr": "learning_rate"}


@dataclass(frozen=True, kw_only=True)
class ForecastOptions(LoopOptions, SeriesOptions):
    """The forecaster, and what a step reads."""

    model: str = ""
    """Which forecaster: informer, dlinear, lstm, repeat or seasonal."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Changes of its configuration, as in d_model=64,rsa=true."""
    label_len: int | None = None
    """Of informer: the observed rows that its decoder reads once more; without it half of past."""
    rows: int = 32
    """Windows of a batch."""
    order: Literal["shuffled", "sequential"] = "shuffled"
    """Order of the training windows: another one in every epoch, or as they stand."""
    replay: bool = True
    """On a GPU: record the first step's kernels and replay them (a CUDA graph), which spares Python
    from starting each of hundreds."""
    check_compiled: bool = True
    """With compile: compare its gradients with those of the step as it was written, before the first
    step and behind steps 100, 1,000, 10,000, ..., and refuse wrong ones."""
    output: Path = Path("runs/forecast")
    """Folder of the run: checkpoints, log.jsonl, settings."""
    learning_rate: float = 1e-4
    """Of all weights."""
    warm_up: int = 0
    """Steps over which the learning rate rises from zero."""
    schedule: Literal["constant", "linear", "cosine", "halving"] = "halving"
    """Learning rate after the warm-up: constant, halved after every epoch, or falling to zero at the
    last step that epochs, max_steps and max_tokens allow."""
    clip: float | None = None
    """Largest norm of the gradient; none does not clip."""
    epochs: int = 6
    """Times all windows are read."""
    max_tokens: int | None = None
    """Stop after so many rows were read, those of every window counted."""
    validate_every: int | None = None
    """Rows between validations; none validates at the end of every epoch."""
    seed: int = 0
    """Of weights, dropout and the order of windows."""

    def __post_init__(self) -> None:
        LoopOptions.__post_init__(self)
        SeriesOptions.__post_init__(self)
        if self.model not in FORECASTERS:
            raise ValueError(
                f"model={self.model!r} is no forecaster: choose from {', '.join(FORECASTERS)}."
            )
        if self.rows < 1:
            raise ValueError(f"rows={self.rows} must be at least 1.")
        if self.label_len is not None and not FORECASTERS[self.model].decodes:
            raise ValueError(
                f"label_len={self.label_len} is for a decoder, and {self.model} has none: leave it out."
            )
        if self.compile and self.model != "informer":
            raise ValueError(f"compile is for informer, and {self.model} is small: leave it out.")
        if self.shard:
            raise ValueError("shard is for large models, and a forecaster is small: leave it out.")
        if self.added_learning_rate != LoopOptions.added_learning_rate:
            raise ValueError(
                "added_learning_rate is for what was added to a pretrained model, and a forecaster is "
                "trained as a whole: leave it out."
            )

    @classmethod
    def of(cls, **settings: Any) -> "ForecastOptions":
        """From values as a settings file has them."""
        return build(cls, settings, aliases=ALIASES)
