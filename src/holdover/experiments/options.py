"""Settings of `holdover run` and `holdover report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from ..runs.settings import Settings

# As in definition.py; a test compares them.
SCALES = ("smoke", "small", "real", "paper")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Settings):
    """Which runs, where, and how many at a time."""

    scale: Literal["smoke", "small", "real", "paper"] = "smoke"
    """smoke: seconds, to test every stage; small: the bundled model; real: a pretrained model on books;
    paper: the papers' own models and data, from the Hugging Face hub."""
    seeds: tuple[int, ...] = ()
    """Seeds (default: the experiment's own for the scale)."""
    only: tuple[str, ...] = ()
    """Arms or runs, also as patterns ("*dlinear*"); default: all."""
    together: int = 1
    """Runs at the same time, each in its own process with a share of the cores (set OMP_NUM_THREADS to
    choose another)."""
    again: bool = False
    """Repeat runs that have a record already."""
    list: bool = False
    """List what would run, and stop. If records lack the layout that a report needs, write it."""
    results: Path = Path("results/experiments")
    """Folder of the records: NAME/SCALE/RUN.json."""
    output: Path = Path("runs/experiments")
    """Folder for what the runs need until their records are written: checkpoints, logs."""
    tidy: bool = False
    """Remove a run's folder when it has a record and no other run needs it."""
    data_dir: Path | None = None
    """Folder with the named corpora; defaults to the environment variable HOLDOVER_DATA."""
    cache_dir: Path | None = None
    """Folder for tokenized text; defaults to the environment variable HOLDOVER_CACHE."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"scale={self.scale!r} is not one of {', '.join(SCALES)}.")
        self.check_at_least(together=1)


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Settings):
    """Which records, and where the report goes."""

    results: Path = Path("results/experiments")
    """Folder of the records, as `holdover run` writes them: NAME/SCALE/RUN.json."""
    output: Path = Path("runs/report.html")
    """The page. The same tables in Markdown go next to it, with the suffix .md."""
    experiments: tuple[str, ...] = ()
    """Names of experiments; none takes all."""
    scales: tuple[str, ...] = ()
    """Scales; none takes all but smoke, whose numbers mean nothing."""

    def __post_init__(self) -> None:
        for scale in self.scales:
            if scale not in SCALES:
                hint = did_you_mean(scale, SCALES)
                raise ValueError(f"--scales {scale}: use some of {', '.join(SCALES)}{hint}")
        if self.output.suffix == ".md":
            raise ValueError(
                f"--output {self.output} would be overwritten by the tables in Markdown: give the page "
                "a name that ends with .html."
            )


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a sentence that suggests the nearest known name."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else "."
