"""Settings of a plan: a model, a run, and the machines to run on."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import RecurrenceConfig
from ..runs.settings import Settings
from ..training.options import ALIASES as TRAIN_ALIASES

if TYPE_CHECKING:
    from .run import PlannedRun

ALIASES = {**TRAIN_ALIASES, "recompute": "recurrence.recompute"}
# Share of a GPU's peak that large windows reach: the median of the H200 records in results/speed and
# results/training (`holdover plan --check`; a test computes it again).
UTILISATION = 0.34
# Seconds that launching a layer's kernels takes in one window, forward and backward, at any window
# size: the median of the same records' windows of fewer than 4,096 tokens.
LAUNCH_SECONDS = 0.0014


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Settings):
    """The settings of holdover train that cost something, and the machines."""

    aliases = ALIASES

    model: str = ""
    """Model to plan for: a Hugging Face name or folder (only the configuration is read), or a model type
    (llama)."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Changes to the configuration, as in num_hidden_layers=16,hidden_size=2048."""
    recurrence: RecurrenceConfig = field(default_factory=RecurrenceConfig)
    rows: int = 8
    """Rows of a batch, over all GPUs."""
    windows: int = 20
    """Windows a step reads in every row."""
    accumulate: int = 1
    """Batches whose gradients are added up for one step."""
    bf16: bool = True
    """Mixed precision: bfloat16 products, float32 weights."""
    compile: bool = False
    """Compile the step."""
    shard: bool = False
    """Each process holds a part of the weights, gradients and optimizer state instead of a full copy."""
    gpus: int = 1
    """Number of GPUs, one process each."""
    gpus_per_node: int = 8
    """GPUs of one machine."""
    hardware: str = "h100"
    """Kind of GPU: a100, h100, h200 or b200."""
    tokens: int = 1_000_000_000
    """Tokens to train on."""
    utilisation: float = UTILISATION
    """Share of the GPU's peak that large windows reach; the default comes from our records."""
    link_use: float = 0.7
    """Share of the links' speed that collectives reach; assumed, not measured."""
    disk: float = 1.0
    """Gigabytes per second at which one process writes a checkpoint; assumed."""
    validate_every: int | None = None
    """Tokens between validations; none leaves them out of the plan."""
    validation_tokens: int = 1_000_000
    """Tokens of one validation."""
    json: Path | None = None
    """Write the plan to this file too."""
    check: tuple[Path, ...] = ()
    """Folders of records (results/speed,results/training,results/scaling): print predicted next to
    measured values, and plan nothing."""

    def __post_init__(self) -> None:
        if self.check:
            return
        if not self.model:
            raise ValueError("Say which model: for example --model gpt2, or --model llama.")
        self.check_at_least(rows=1, windows=1, accumulate=1, gpus=1, gpus_per_node=1, tokens=1)
        self.check_at_least(validation_tokens=1, validate_every=1)
        for name in ("utilisation", "link_use"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0 and at most 1.")
        if not self.disk > 0:
            raise ValueError(f"disk={self.disk} must be greater than 0.")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise ValueError(
                f"{self.gpus} GPUs are no whole number of nodes of {self.gpus_per_node}: give a "
                "multiple."
            )
        if self.rows < self.gpus:
            raise ValueError(
                f"{self.gpus} GPUs share the rows of a batch, and there are {self.rows}: give at least "
                f"--rows {self.gpus}."
            )
        if self.shard and self.compile:
            raise ValueError("--compile does not work with --shard: leave one of them out.")
        if self.shard and self.gpus == 1:
            raise ValueError("--shard is for several GPUs, and there is one: leave it out.")

    def run(self) -> "PlannedRun":
        """The run as the process with the most rows sees it."""
        from .run import PlannedRun

        recompute = self.recurrence.recompute
        assert recompute != "auto"
        return PlannedRun(
            rows=-(-self.rows // self.gpus),
            windows=self.windows,
            window=self.recurrence.window,
            overlap=self.recurrence.overlap,
            accumulate=self.accumulate,
            recompute=recompute,
            precision="autocast" if self.bf16 else "float32",
            compiled=self.compile,
            processes=self.gpus,
            processes_a_node=self.gpus_per_node,
            shard=self.shard,
        )
