"""Settings of the training loop, which every application's training shares."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config import RSA_FIELDS
from ..runs.settings import Settings

Tracker = Literal["tensorboard", "wandb", "trackio"]
# Short names of settings, on the command line and in files.
ALIASES = {
    "window": "recurrence.window",
    "overlap": "recurrence.overlap",
    "recurrence": "recurrence.carry",
    "lr": "learning_rate",
    **{name: f"recurrence.{name}" for name in ("rsa", *RSA_FIELDS)},
}
# Settings that may change when a run is continued: its end (unless the learning rate schedule depends
# on it), its output, file locations on this machine, and the number of processes.
CHANGEABLE = frozenset(
    {"epochs", "max_steps", "max_tokens", "max_time", "patience", "save_every", "keep", "log_every"}
    | {"report_to", "output", "data_dir", "cache_dir", "check_compiled", "replay"}
    | {"processes", "shard", "trust_remote_code"}
)


@dataclass(frozen=True, kw_only=True)
class LoopOptions(Settings):
    """The run: learning rates, limits, checkpoints, logs."""

    output: Path = Path("runs/train")
    """Folder of the run: checkpoints, log.jsonl, settings."""
    learning_rate: float = 5e-5
    """Learning rate of the pretrained weights."""
    added_learning_rate: float = 5e-4
    """Learning rate of the weights that holdover adds, and of the parameters of RSA."""
    warm_up: int = 100
    """Steps over which learning rates rise from zero."""
    schedule: Literal["constant", "linear", "cosine", "halving"] = "constant"
    """Learning rates after the warm-up: constant, halved after every epoch but the first, or
    falling to zero at the last step that epochs, max_steps and max_tokens allow."""
    betas: tuple[float, ...] = (0.9, 0.999)
    """Adam's two decay rates."""
    weight_decay: float = 0.0
    """Decoupled weight decay, on matrices only."""
    clip: float | None = 1.0
    """Largest norm of the gradient; none does not clip."""
    accumulate: int = 1
    """Batches whose gradients are added up for one step."""
    epochs: int = 2
    """Passes over the training data."""
    max_steps: int | None = None
    """Stop after this many steps."""
    max_tokens: int | None = None
    """Stop after this many tokens."""
    max_time: float | None = None
    """Stop after this many minutes of training; interruptions do not count."""
    validate_every: int | None = 2_000_000
    """Tokens between validations; none validates at the end of every epoch."""
    patience: int | None = 3
    """Stop after this many validations without a better loss; none never stops early."""
    save_every: int = 500
    """Steps between checkpoints. There is also one at every validation, at the end and on a signal."""
    keep: int = 2
    """Recent checkpoints to keep, in addition to the best."""
    bf16: bool = False
    """Mixed precision: bfloat16 products, float32 weights."""
    tf32: bool = False
    """On a GPU: float32 products in TensorFloat-32 (10 bits of mantissa), several times as fast."""
    compile: bool = False
    """Compile the step; worth it for runs of more than a few minutes on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on."""
    processes: int = 1
    """Start this many processes on this machine, one per GPU, which share the rows. Leave it out with
    torchrun or accelerate launch, which start the processes themselves."""
    shard: bool = False
    """With several processes: each holds a part of the weights, gradients and optimizer state (FSDP2)
    instead of a full copy."""
    seed: int = 0
    """Seed for new weights, dropout and document order."""
    log_every: int = 20
    """Steps between lines for trackers, and on a console that is not a terminal."""
    report_to: tuple[str, ...] = ()
    """Trackers in addition to log.jsonl: tensorboard, wandb, trackio."""

    def __post_init__(self) -> None:
        self.check_at_least(warm_up=0, accumulate=1, epochs=1, max_steps=1, max_tokens=1)
        self.check_at_least(validate_every=1, patience=1, save_every=1, keep=1, seed=0)
        self.check_at_least(log_every=1, processes=1)
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
