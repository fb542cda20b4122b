"""Settings of `holdover report`."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Which records, and where the report goes."""

    results: Path = Path("results/experiments")
    """Folder of the records, as `holdover run` writes them: NAME/SCALE/RUN.json."""
    output: Path = Path("runs/report.html")
    """The page. Beside it, with the ending .md, the same tables in Markdown."""
    experiments: tuple[str, ...] = ()
    """Names of experiments; none takes all."""
    scales: tuple[str, ...] = ()
    """Scales; none takes all but smoke, whose numbers mean nothing."""
