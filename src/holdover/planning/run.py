"""Run: what of a training its costs depend on, as one process sees it."""

from dataclasses import dataclass
from typing import Literal

from .model_profile import Precision


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    rows: int  # of one process
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
    # What the benchmarks of results/speed did without: their steps end with backward.
    optimizer: bool = True
    # transformers' own model and loss, window by window.
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
        """Windows whose activations are held at once."""
        return 1 if self.stock or self.recompute == "window" else self.windows
