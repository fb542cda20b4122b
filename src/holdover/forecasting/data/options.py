"""Which series to read, and how to cut them: the settings that training and evaluation share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...runs.settings import Settings

Features = Literal["M", "S", "MS"]
Irregular = Literal["refuse", "keep"]


@dataclass(frozen=True, kw_only=True)
class TableOptions(Settings):
    """The series, and the format of their file."""

    data: str = ""
    """CSV with a time column and number columns (wide), or with unique_id, ds and y (long), also
    compressed (.xz, .gz); or a name: ETTh1, ETTh2, ETTm1, ETTm2, WTH, weather."""
    data_dir: Path | None = None
    """Folder with the named data sets; defaults to the environment variable HOLDOVER_DATA."""
    time_column: str | None = None
    """Time column; defaults to date, ds, time, timestamp or datetime."""
    date_format: str | None = None
    """Format of the times, as for Python's strptime; usual formats are recognised without it."""
    encoding: str = "utf-8"
    """Encoding of the CSV."""
    irregular: Irregular = "refuse"
    """What to do with gaps and repeated times: refuse them and name the line, or keep the rows as they
    are."""


@dataclass(frozen=True, kw_only=True)
class SeriesOptions(TableOptions):
    """How series are cut into windows."""

    past: int = 96
    """Rows that a forecast is made from (seq_len)."""
    ahead: int = 24
    """Rows to forecast (pred_len)."""
    features: Features = "M"
    """M: all columns from all; S: the target from itself; MS: the target from all columns."""
    target: str | None = None
    """Column that S and MS forecast; defaults to the data set's own, y, or the only one."""
    split: str | None = None
    """Training, validation and test as shares (70/10/20) or months of 30 days ('12/4/4 months');
    defaults to the data set's own, or 70/10/20."""

    def __post_init__(self) -> None:
        self.check_at_least(past=1, ahead=1)
