"""Settings of a plan: a model, a run and the machines it is for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import RecurrenceConfig
from ..runs.settings import build
from ..training.options import ALIASES as TRAIN_ALIASES
from .run import PlannedRun

ALIASES = {**TRAIN_ALIASES, "recompute": "recurrence.recompute"}
# Of a GPU's peak, where its windows are large: the median of the H200 records in results/speed and
# results/training (`holdover plan --check`; a test computes it again).
UTILISATION = 0.34
# Seconds that a layer's launches take in one window, forward and backward, however small the window is:
# the median of the same records' windows of fewer than 4,096 tokens.
LAUNCH_SECONDS = 0.0014


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is planned: the settings of holdover train that cost something, and the machines."""

    model: str = ""
    """Name or folder of a Hugging Face causal language model, of which only the configuration is read,
    or a type of models (llama)."""
    shape: dict[str, Any] = field(default_factory=dict)
    """Changes of the configuration, as in num_hidden_layers=16,hidden_size=2048."""
    recurrence: RecurrenceConfig = field(default_factory=RecurrenceConfig)
    rows: int = 8
    """Rows of a batch, of all GPUs together."""
    windows: int = 20
    """Windows a step reads in every row."""
    accumulate: int = 1
    """Batches whose gradients make one step."""
    bf16: bool = True
    """Mixed precision: bfloat16 products, float32 weights."""
    compile: bool = False
    """The step is compiled."""
    shard: bool = False
    """Processes hold parts of weights, gradients and the optimiser's numbers, not copies."""
    gpus: int = 1
    """GPUs, one process each."""
    gpus_per_node: int = 8
    """GPUs of one machine."""
    hardware: str = "h100"
    """Kind of GPU: a100, h100, h200 or b200."""
    tokens: int = 1_000_000_000
    """Tokens that the run is to read."""
    utilisation: float = UTILISATION
    """Share of the GPU's peak that large windows reach; the default is that of our records."""
    link_use: float = 0.7
    """Share of the links' speed that collectives reach; assumed, not measured."""
    disk: float = 1.0
    """Gigabytes a second at which one process writes a checkpoint; assumed."""
    validate_every: int | None = None
    """Tokens between validations; none leaves them out of the plan."""
    validation_tokens: int = 1_000_000
    """Tokens of one validation."""
    json: Path | None = None
    """Write the plan to this file too."""
    check: tuple[Path, ...] = ()
    """Folders of records (results/speed,results/training,results/scaling): print what is predicted for
    them beside what was measured, and plan nothing."""

    def __post_init__(self) -> None:
        if self.check:
            return
        if not self.model:
            raise ValueError("Say which model: for example --model gpt2, or --model llama.")
        at_least_one = ("rows", "windows", "accumulate", "gpus", "gpus_per_node", "tokens")
        for name in (*at_least_one, "validation_tokens", "validate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
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
            raise ValueError("--compile goes with copies: leave it or --shard out.")
        if self.shard and self.gpus == 1:
            raise ValueError("--shard is for several GPUs, and there is one: leave it out.")

    @classmethod
    def of(cls, **settings: Any) -> "PlanOptions":
        """From values as a settings file has them: paths as text, window and overlap, sections."""
        return build(cls, settings, aliases=ALIASES)

    def run(self) -> PlannedRun:
        """As the process with the most rows sees it."""
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
