"""Settings of `holdover report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ...runs.settings import Settings
from ..options import SCALES


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
