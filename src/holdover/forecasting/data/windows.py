"""Rows split into training, validation and test, and the windows of each part.

* A split counts months of 30 days, as the ETT papers do (12/4/4: hourly rows 8640/2880/2880), or shares
  (70/10/20: training and test rounded down to whole rows, the rest for validation).
* A part's rows are the rows that are forecast in it. Validation and test also read the `past` rows
  before them (their lead), or their first rows could not be forecast. Training has no lead.
* A window is any `past + ahead` consecutive rows. Window i starts one row after window i - 1. None is
  left out, so the last batch may be short.
* All series share one set of arrays; windows are slices of them.
* Seed and epoch alone determine the order of training, so a batch number is a position in the data.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...runs.processes import Share
from .cells import counted
from .frequency import Frequency
from .table import Series

PARTS = ("train", "valid", "test")
RULE = re.compile(r"(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)( months)?")
DAYS_OF_MONTH = 30


@dataclass(frozen=True)
class RowSpan:
    """Rows start .. stop of a series, and how many rows before them may be read as well."""

    start: int
    stop: int
    lead: int = 0

    def windows(self, past: int, ahead: int) -> int:
        """How many windows of past + ahead rows there are."""
        return max(0, self.lead + self.stop - self.start - past - ahead + 1)


@dataclass(frozen=True)
class SplitRule:
    train: float
    valid: float
    test: float
    months: bool = False

    @classmethod
    def parse(cls, text: str) -> "SplitRule":
        match = RULE.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"--split {text!r} has an unknown form: write the shares of training, validation and "
                "test as 70/10/20, or months of 30 days as '12/4/4 months'."
            )
        rule = cls(*(float(part) for part in match.groups()[:3]), months=bool(match[4]))
        if not (rule.train and rule.valid and rule.test):
            raise ValueError(
                f"--split {text!r} leaves a part without rows: give each of the three some."
            )
        if not rule.months and abs(rule.train + rule.valid + rule.test - 100) > 1e-9:
            raise ValueError(f"--split {text!r} does not add up to 100 percent: change the shares.")
        return rule

    def __str__(self) -> str:
        shares = f"{self.train:g}/{self.valid:g}/{self.test:g}"
        return f"{shares} months" if self.months else shares

    def spans(self, rows: int, past: int, frequency: Frequency, name: str) -> dict[str, RowSpan]:
        """The parts of a series."""
        train, valid, test = self._counts(rows, frequency, name)
        first, second, third = train, train + valid, train + valid + test
        return {
            "train": RowSpan(0, first),
            "valid": RowSpan(first, second, past),
            "test": RowSpan(second, third, past),
        }

    def _counts(self, rows: int, frequency: Frequency, name: str) -> tuple[int, int, int]:
        if not self.months:
            # Multiply first: 0.7 * 90 is slightly less than 63.
            train, test = int(rows * self.train / 100), int(rows * self.test / 100)
            return train, rows - train - test, test
        month = frequency.steps_in_days(DAYS_OF_MONTH)
        if month is None:
            raise ValueError(
                f"The rows of {name} are {frequency} apart, which does not divide the 30 days that "
                f"--split '{self}' counts: split by shares, as in 70/10/20."
            )
        train, valid, test = (int(part * month) for part in (self.train, self.valid, self.test))
        needed = train + valid + test
        if needed > rows:
            raise ValueError(
                f"{name} has {counted(rows, 'row')}, but --split '{self}' needs {needed:,} ({month:,} a "
                "month): give a longer file, or split by shares, as in 70/10/20."
            )
        return train, valid, test


def check_long_enough(span: RowSpan, part: str, past: int, ahead: int, name: str) -> None:
    """Refuse a part that is too short for a window, and show the calculation."""
    if span.windows(past, ahead):
        return
    rows = counted(span.stop - span.start, "row")
    if span.lead:
        needed, terms = ahead, f"--ahead {ahead}; the {past:,} rows before it are read as well"
    else:
        needed, terms = past + ahead, f"--past {past} + --ahead {ahead}"
    raise ValueError(
        f"{name}: the {part} part has {rows}, too few for one window of {needed:,} ({terms}); give a "
        "longer file, another --split, or a smaller --past or --ahead."
    )


@dataclass(frozen=True)
class Rows:
    """The rows of all series, one series after another, scaled, with their time features."""

    series: tuple[Series, ...]
    inputs: np.ndarray  # [N, I] float32
    outputs: np.ndarray  # [N, O] float32
    marks: np.ndarray  # [N, F] float32

    def bounds(self) -> np.ndarray:  # [S + 1] first row of each series, and the end
        return np.cumsum([0, *map(len, self.series)])


@dataclass(frozen=True)
class SeriesWindow:
    """The first forecast row of a window."""

    series: str
    row: int  # in its series, from 0
    line: int  # in the file
    time: np.datetime64


@dataclass(frozen=True)
class ForecastWindow:
    values: np.ndarray  # [past, I]
    marks: np.ndarray  # [past, F]
    future: np.ndarray  # [ahead, O]
    future_marks: np.ndarray  # [ahead, F]
    place: SeriesWindow


@dataclass(frozen=True)
class ForecastBatch:
    values: Tensor  # [B, past, I]
    marks: Tensor  # [B, past, F]
    future: Tensor  # [B, ahead, O]
    future_marks: Tensor  # [B, ahead, F]
    numbers: np.ndarray  # [B] window numbers
    series: np.ndarray  # [B] index of each window's series
    together: int  # windows of this batch over all processes
    idle: bool = False  # this process has none of them; it reads one that does not count

    @property
    def scored(self) -> int:
        """Forecast values over all processes."""
        return self.together * self.future[0].numel()

    @property
    def tokens(self) -> int:
        """Rows read over all processes."""
        return self.together * self.values.shape[1]

    def pinned(self) -> "ForecastBatch":
        return self._map(Tensor.pin_memory)

    def to(self, device: torch.device) -> "ForecastBatch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def _map(self, change) -> "ForecastBatch":
        names = ("values", "marks", "future", "future_marks")
        return replace(self, **{name: change(getattr(self, name)) for name in names})


class Windows:
    """The windows of one part; `spans` has the rows of that part for each series."""

    def __init__(self, rows: Rows, spans: Sequence[RowSpan], past: int, ahead: int) -> None:
        self.rows, self.spans, self.past, self.ahead = rows, tuple(spans), past, ahead
        counts = [span.windows(past, ahead) for span in self.spans]
        # The number of each series' first window, and the count of all windows.
        self.bounds = np.cumsum([0, *counts])
        self._first_rows = np.array([span.start - span.lead + past for span in self.spans])
        self._begins = rows.bounds()

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def series_of(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.bounds, numbers, side="right") - 1

    def first_rows(self, numbers: np.ndarray) -> np.ndarray:
        """The first forecast row of each window, in its series."""
        series = self.series_of(numbers)
        return self._first_rows[series] + numbers - self.bounds[series]

    def place(self, number: int) -> SeriesWindow:
        series = self.rows.series[int(self.series_of(np.array(number)))]
        row = int(self.first_rows(np.array(number)))
        return SeriesWindow(series.id, row, int(series.lines[row]), series.times[row])

    def __getitem__(self, number: int) -> ForecastWindow:
        number = range(len(self))[number]
        batch = self.batch(np.array([number]))
        return ForecastWindow(
            values=batch.values[0].numpy(),
            marks=batch.marks[0].numpy(),
            future=batch.future[0].numpy(),
            future_marks=batch.future_marks[0].numpy(),
            place=self.place(number),
        )

    def batch(self, numbers: np.ndarray) -> ForecastBatch:
        series = self.series_of(numbers)
        first = self._begins[series] + self.first_rows(numbers)
        past = first[:, None] + np.arange(-self.past, 0)
        ahead = first[:, None] + np.arange(self.ahead)
        rows = self.rows
        return ForecastBatch(
            values=torch.from_numpy(rows.inputs[past]),
            marks=torch.from_numpy(rows.marks[past]),
            future=torch.from_numpy(rows.outputs[ahead]),
            future_marks=torch.from_numpy(rows.marks[ahead]),
            numbers=numbers,
            series=series,
            together=len(numbers),
        )

    def count_batches(self, size: int) -> int:
        return -(-len(self) // size)

    def batches(self, size: int, start: int = 0, share: Share = Share()) -> Iterator[ForecastBatch]:
        """All windows in order, from batch `start` on; of each batch this process's share."""
        return self._batches(np.arange(len(self)), size, start, share)

    def shuffled(
        self, size: int, seed: int, epoch: int, start: int = 0, share: Share = Share()
    ) -> Iterator[ForecastBatch]:
        """All windows in the random order of this epoch, from batch `start` on."""
        return self._batches(self.order(seed, epoch), size, start, share)

    def order(self, seed: int, epoch: int) -> np.ndarray:
        return np.random.default_rng([seed, epoch]).permutation(len(self))

    def _batches(
        self, order: np.ndarray, size: int, start: int, share: Share
    ) -> Iterator[ForecastBatch]:
        for first in range(start * size, len(order), size):
            together = order[first : first + size]
            own, idle = share.rows_or_idle(len(together))
            yield replace(self.batch(together[own]), together=len(together), idle=idle)
