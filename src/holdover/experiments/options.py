"""Settings of `holdover run`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .definition import SCALES


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Which runs, where, and how many at a time."""

    scale: Literal["smoke", "small", "real", "paper"] = "smoke"
    """smoke: seconds, to see it work; small: the bundled model; real: a pretrained model on books;
    paper: the papers' own models and data, from the hub."""
    seeds: tuple[int, ...] = ()
    """Seeds; none takes the experiment's own for the scale."""
    only: tuple[str, ...] = ()
    """Arms or runs, also as patterns ("*dlinear*"); none takes all."""
    together: int = 1
    """Runs side by side, each in a process of its own with its part of the cores (else set
    OMP_NUM_THREADS)."""
    again: bool = False
    """Also what has a record."""
    list: bool = False
    """Say what would run, and stop. Where records lack the layout that a report needs, it is written."""
    results: Path = Path("results/experiments")
    """Folder of the records: NAME/SCALE/RUN.json."""
    output: Path = Path("runs/experiments")
    """Folder of what the runs need until their records are written: checkpoints, logs."""
    tidy: bool = False
    """Remove a run's folder once it has a record and no run needs it any more."""
    data_dir: Path | None = None
    """Folder of the corpora; none takes HOLDOVER_DATA."""
    cache_dir: Path | None = None
    """Folder of prepared texts; none takes HOLDOVER_CACHE."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"scale={self.scale!r}: use one of {', '.join(SCALES)}.")
        if self.together < 1:
            raise ValueError(f"together={self.together} must be at least 1.")
