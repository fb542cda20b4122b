"""Settings of `holdover run` and `holdover report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
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
    """Seeds (default: the experiment's own for the scale)."""
    only: tuple[str, ...] = ()
    """Arms or runs, also as patterns ("*dlinear*"); default: all."""
    together: int = 1
    """Number of runs at a time, each in its own process with its share of the cores, unless
    OMP_NUM_THREADS is set."""
    again: bool = False
    """Also repeat runs that have a record."""
    list: bool = False
    """List what would run, and stop. If records lack the layout that a report needs, write it."""
    results: Path = Path("results/experiments")
    """Folder of the records: NAME/SCALE/RUN.json."""
    output: Path = Path("runs/experiments")
    """Folder for checkpoints and logs, which runs need until their records are written."""
    tidy: bool = False
    """Remove a run's folder once it has a record and no other run needs it."""
    data_dir: Path | None = None
    """Folder of the corpora (default: HOLDOVER_DATA)."""
    cache_dir: Path | None = None
    """Folder of prepared texts (default: HOLDOVER_CACHE)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"--scale {self.scale}: use one of {', '.join(SCALES)}.")
        if self.together < 1:
            raise ValueError(f"--together {self.together} must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Which records, and where the report goes."""

    results: Path = Path("results/experiments")
    """Folder of the records, as `holdover run` writes them: NAME/SCALE/RUN.json."""
    output: Path = Path("runs/report.html")
    """The page. The same tables in Markdown go next to it, with the ending .md."""
    experiments: tuple[str, ...] = ()
    """Names of experiments (default: all)."""
    scales: tuple[str, ...] = ()
    """Scales (default: all but smoke, whose numbers mean nothing)."""

    def __post_init__(self) -> None:
        for scale in self.scales:
            if scale not in SCALES:
                meant = did_you_mean(scale, SCALES)
                raise ValueError(f"--scales {scale}: use some of {', '.join(SCALES)}{meant}")
        if self.output.suffix == ".md":
            raise ValueError(
                f"--output {self.output} is where the tables in Markdown go: give the page a name with "
                "the ending .html."
            )


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of a sentence that lists the known names."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else "."
