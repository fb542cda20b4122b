"""Which series are read, and how they are cut: the settings that training and evaluation share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Features = Literal["M", "S", "MS"]
Irregular = Literal["refuse", "keep"]


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The series, and how their file is written."""

    data: str = ""
    """CSV with a column of times and columns of numbers (wide), or with unique_id, ds and y (long), also
    packed (.xz, .gz); or a name: ETTh1, ETTh2, ETTm1, ETTm2, WTH, weather."""
    data_dir: Path | None = None
    """Folder that holds the data sets with a name; without it the environment's HOLDOVER_DATA."""
    time_column: str | None = None
    """Column of times; without it date, ds, time, timestamp or datetime."""
    date_format: str | None = None
    """How times are written, as Python's strptime has it; without it usual ways are recognised."""
    encoding: str = "utf-8"
    """Encoding of the CSV."""
    irregular: Irregular = "refuse"
    """What to do with gaps and repeated times: stop and say where, or take the rows as they stand."""


@dataclass(frozen=True, kw_only=True)
class SeriesOptions(TableOptions):
    """How series are cut into windows."""

    past: int = 96
    """Rows that a forecast is made from (seq_len)."""
    ahead: int = 24
    """Rows that are forecast (pred_len)."""
    features: Features = "M"
    """M: all columns from all; S: the target from itself; MS: the target from all columns."""
    target: str | None = None
    """Column that S and MS forecast; without it the data set's own, y, or the only one."""
    split: str | None = None
    """Training, validation and test as shares (70/10/20) or months of 30 days ('12/4/4 months'); without
    it the data set's own, or 70/10/20."""

    def __post_init__(self) -> None:
        for name in ("past", "ahead"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
