"""Settings of the training loop, which every application's training shares."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config import RSA_FIELDS

Tracker = Literal["tensorboard", "wandb", "trackio"]
# Short names of settings, on the command line and in files.
ALIASES = {
    "window": "recurrence.window",
    "overlap": "recurrence.overlap",
    "recurrence": "recurrence.carry",
    "lr": "learning_rate",
    **{name: f"recurrence.{name}" for name in ("rsa", *RSA_FIELDS)},
}
# What may differ between a run and its continuation: when it ends (unless learning rates depend on
# that), what it shows and keeps, where this machine has its files, how many processes share the work.
CHANGEABLE = frozenset(
    {"epochs", "max_steps", "max_tokens", "max_time", "patience", "save_every", "keep", "log_every"}
    | {"report_to", "output", "data_dir", "cache_dir", "check_compiled", "replay"}
    | {"processes", "shard", "trust_remote_code"}
)


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """The run: learning rates, limits, checkpoints, logs."""

    output: Path = Path("runs/train")
    """Folder of the run: checkpoints, log.jsonl, settings."""
    learning_rate: float = 5e-5
    """Of the pretrained weights."""
    added_learning_rate: float = 5e-4
    """Of the weights that holdover added, and of the numbers of a recurrence in attention."""
    warm_up: int = 100
    """Steps over which learning rates rise from zero."""
    schedule: Literal["constant", "linear", "cosine", "halving"] = "constant"
    """Learning rates after the warm-up: constant, halved after every epoch but the first, or
    falling to zero at the last step that epochs, max_steps and max_tokens allow."""
    betas: tuple[float, ...] = (0.9, 0.999)
    """Adam's two decay rates."""
    weight_decay: float = 0.0
    """Decoupled, on matrices only."""
    clip: float | None = 1.0
    """Largest norm of the gradient; none does not clip."""
    accumulate: int = 1
    """Batches whose gradients make one step."""
    epochs: int = 2
    """Times the whole text is read."""
    max_steps: int | None = None
    """Stop after so many steps."""
    max_tokens: int | None = None
    """Stop after so many tokens."""
    max_time: float | None = None
    """Stop after so many minutes, interruptions not counted."""
    validate_every: int | None = 2_000_000
    """Tokens between validations; none validates at the end of every epoch."""
    patience: int | None = 3
    """Stop after so many validations without a better loss; none goes on."""
    save_every: int = 500
    """Steps between checkpoints; one is written at every validation, at the end and on a signal too."""
    keep: int = 2
    """Checkpoints that are kept beside the best."""
    bf16: bool = False
    """Mixed precision: bfloat16 products, float32 weights."""
    tf32: bool = False
    """On a GPU: products of float32 with 10 bits behind the point (TensorFloat-32), several times as
    fast."""
    compile: bool = False
    """Compile the step; worth it for runs of more than a few minutes on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    processes: int = 1
    """Start so many processes on this machine, one a GPU, that share the rows; torchrun and accelerate
    launch start them themselves."""
    shard: bool = False
    """With several processes: each holds a part of the weights, gradients and the optimiser's numbers
    (FSDP2), not a copy of all."""
    seed: int = 0
    """Of new weights, dropout and the order of documents."""
    log_every: int = 20
    """Steps between lines on the console, where it is no terminal, and to trackers."""
    report_to: tuple[str, ...] = ()
    """Trackers beside log.jsonl: tensorboard, wandb, trackio."""

    def __post_init__(self) -> None:
        at_least = {"warm_up": 0, "accumulate": 1, "epochs": 1, "max_steps": 1, "max_tokens": 1}
        at_least |= {"validate_every": 1, "patience": 1, "save_every": 1, "keep": 1, "seed": 0}
        at_least |= {"log_every": 1, "processes": 1}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}.")
        for name in ("learning_rate", "added_learning_rate", "max_time", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} must be greater than 0.")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay={self.weight_decay} must be at least 0.")
        if self.seed >= 2**32:
            raise ValueError(f"seed={self.seed} must be below 2**32.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas} must be two numbers of at least 0 and below 1.")
        for name in self.report_to:
            if name not in ("tensorboard", "wandb", "trackio"):
                raise ValueError(
                    f"report_to={name!r} is no tracker: choose from tensorboard, wandb and trackio."
                )
