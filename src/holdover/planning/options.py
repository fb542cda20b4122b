"""Settings of a plan: the model, the training run and its machines."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..config import RecurrenceConfig
from ..runs.settings import Settings
from ..training.options import ALIASES as TRAIN_ALIASES

ALIASES = {**TRAIN_ALIASES, "recompute": "recurrence.recompute"}
# Share of a GPU's peak that large windows reach: the median of the H200 records in results/speed and
# results/training (`holdover plan --check` prints it; a test compares).
UTILISATION = 0.34
# Seconds to launch one layer's kernels for one window, forward and backward, however small the window:
# the median over the windows of fewer than 4,096 tokens in the same records.
LAUNCH_SECONDS = 0.0014

# float32; bfloat16 products of float32 weights; bfloat16 weights and products.
Precision = Literal["float32", "autocast", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The settings of a training run that determine its cost, for one process."""

    rows: int  # of this process
    windows: int
    window: int
    overlap: int = 0
    accumulate: int = 1
    recompute: Literal["none", "window"] = "none"
    precision: Precision = "float32"
    compiled: bool = False
    processes: int = 1
    processes_a_node: int = 8
    shard: bool = False
    # False for the benchmarks in results/speed, whose steps end with backward.
    optimizer: bool = True
    # True for transformers' own model and loss, one window at a time.
    stock: bool = False

    @property
    def weight_bytes(self) -> int:
        return 2 if self.precision == "bfloat16" else 4

    @property
    def product_bytes(self) -> int:
        return 4 if self.precision == "float32" else 2

    @property
    def tokens_a_batch(self) -> int:
        """New tokens that one process reads in one batch."""
        return self.rows * self.windows * (self.window - self.overlap)

    @property
    def kept_windows(self) -> int:
        """Windows whose activations are in memory at the same time."""
        return 1 if self.stock or self.recompute == "window" else self.windows


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Settings):
    """The settings of holdover train that affect its cost, and the machines."""

    aliases = ALIASES

    model: str = ""
    """Hugging Face causal language model: a name, a folder or a model type (llama). Only its
    configuration is read."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Changes to the configuration, for example num_hidden_layers=16,hidden_size=2048."""
    recurrence: RecurrenceConfig = field(default_factory=RecurrenceConfig)
    rows: int = 8
    """Rows per batch, over all GPUs."""
    windows: int = 20
    """Windows that a step reads in every row."""
    accumulate: int = 1
    """Batches per step (gradient accumulation)."""
    bf16: bool = True
    """Mixed precision: bfloat16 products, float32 weights."""
    compile: bool = False
    """Compile the step."""
    shard: bool = False
    """Split weights, gradients and optimiser state over the processes (FSDP2)."""
    gpus: int = 1
    """Number of GPUs, with one process each."""
    gpus_per_node: int = 8
    """GPUs per machine."""
    hardware: str = "h100"
    """GPU model: a100, h100, h200 or b200."""
    tokens: int = 1_000_000_000
    """Training tokens."""
    utilisation: float = UTILISATION
    """Share of the GPU's peak that large windows reach; the default is the median of our records."""
    link_use: float = 0.7
    """Share of the links' speed that collectives reach; assumed, not measured."""
    disk: float = 1.0
    """Speed of writing a checkpoint, in gigabytes per second; assumed."""
    validate_every: int | None = None
    """Tokens between validations; with none, the plan leaves validation out."""
    validation_tokens: int = 1_000_000
    """Tokens per validation."""
    json: Path | None = None
    """Also write the plan to this JSON file."""
    check: tuple[Path, ...] = ()
    """Instead of planning a run, compare predictions with the records in these folders, for example
    results/speed,results/training,results/scaling."""

    def __post_init__(self) -> None:
        if self.check:
            return
        if not self.model:
            raise ValueError("--model is missing: give for example --model gpt2 or --model llama.")
        at_least_one = ("rows", "windows", "accumulate", "gpus", "gpus_per_node", "tokens")
        for name in (*at_least_one, "validation_tokens", "validate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{_flag(name)} {value}: expected at least 1.")
        for name in ("utilisation", "link_use"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise ValueError(f"{_flag(name)} {value}: expected a share above 0 and at most 1.")
        if not self.disk > 0:
            raise ValueError(f"--disk {self.disk}: expected a speed above 0.")
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise ValueError(
                f"--gpus {self.gpus} does not fill whole nodes of --gpus-per-node "
                f"{self.gpus_per_node}: give a multiple of it."
            )
        if self.rows < self.gpus:
            raise ValueError(
                f"--rows {self.rows} is too small: every one of the {self.gpus} GPUs needs a row. Give "
                f"at least --rows {self.gpus}."
            )
        if self.shard and self.compile:
            raise ValueError("--compile does not work with --shard: leave one of them out.")
        if self.shard and self.gpus == 1:
            raise ValueError("--shard needs several GPUs: leave it out, or give more --gpus.")

    def run(self) -> PlannedRun:
        """For the process with the most rows."""
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


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
