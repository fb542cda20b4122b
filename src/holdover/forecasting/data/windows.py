"""Which rows are for training, validation and test.

* By months of 30 days, as the ETT papers count them (12/4/4: hourly rows 8640/2880/2880), or by shares
  (70/10/20: whole rows rounded down for training and test, the rest for validation).
* The rows of a part are those that are forecast in it. Validation and test read `past` rows in front of
  theirs (their lead), or their first rows could not be forecast; training has none.

Windows: every stretch of past + ahead rows of a part, by number.

* Window number i begins one row after number i - 1. None is left out: the last batch is short.
* The parts of all series share one set of arrays; a window is a place in them.
* The order of training follows from seed and epoch alone, so a position in the data is a batch's number.
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
    """Rows start .. stop of a series, and how many before them may be read."""

    start: int
    stop: int
    lead: int = 0

    def windows(self, past: int, ahead: int) -> int:
        """How many windows of past + ahead rows there are; none is left out."""
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
                f"split={text!r} is not understood: write shares of the rows for training, validation "
                "and test as 70/10/20, or months of 30 days as '12/4/4 months'."
            )
        rule = cls(*(float(part) for part in match.groups()[:3]), months=bool(match[4]))
        if not (rule.train and rule.valid and rule.test):
            raise ValueError(f"split={text!r} leaves a part without rows: give all three some.")
        if not rule.months and abs(rule.train + rule.valid + rule.test - 100) > 1e-9:
            raise ValueError(f"split={text!r} does not add up to 100 percent: change the shares.")
        return rule

    def __str__(self) -> str:
        shares = f"{self.train:g}/{self.valid:g}/{self.test:g}"
        return f"{shares} months" if self.months else shares

    def spans(self, rows: int, past: int, frequency: Frequency, name: str) -> dict[str, RowSpan]:
        """The parts of a series of so many rows."""
        train, valid, test = self._counts(rows, frequency, name)
        first, second, third = train, train + valid, train + valid + test
        return {
            "train": RowSpan(0, first),
            "valid": RowSpan(first, second, past),
            "test": RowSpan(second, third, past),
        }

    def _counts(self, rows: int, frequency: Frequency, name: str) -> tuple[int, int, int]:
        if not self.months:
            # Multiplied first: 0.7 times 90 would be a little less than the 63 rows it should be.
            train, test = int(rows * self.train / 100), int(rows * self.test / 100)
            return train, rows - train - test, test
        month = frequency.steps_in_days(DAYS_OF_MONTH)
        if month is None:
            raise ValueError(
                f"The rows of {name} are {frequency} apart, which does not divide 30 days as "
                f"split={self} needs it: split by shares, as in 70/10/20."
            )
        train, valid, test = (int(part * month) for part in (self.train, self.valid, self.test))
        needed = train + valid + test
        if needed > rows:
            raise ValueError(
                f"{name} has {counted(rows, 'row')} where split={self} needs {needed:,} ({month:,} a "
                "month): give a longer file, or split by shares, as in 70/10/20."
            )
        return train, valid, test


def check_long_enough(span: RowSpan, part: str, past: int, ahead: int, name: str) -> None:
    """Refuse a part that has no window, with the arithmetic."""
    if span.windows(past, ahead):
        return
    rows = counted(span.stop - span.start, "row")
    if span.lead:
        needed, sum_of = ahead, f"ahead={ahead}; the {past:,} rows before it are read as well"
    else:
        needed, sum_of = past + ahead, f"past={past} + ahead={ahead}"
    raise ValueError(
        f"{name}: the {part} part has {rows}, too few for one window of {needed:,} ({sum_of}); give a "
        "longer file, another split, or a smaller past or ahead."
    )


@dataclass(frozen=True)
class Rows:
    """All rows of all series behind each other, scaled, with their time features."""

    series: tuple[Series, ...]
    inputs: np.ndarray  # [N, I] float32
    outputs: np.ndarray  # [N, O] float32
    marks: np.ndarray  # [N, F] float32

    def bounds(self) -> np.ndarray:  # [S + 1] where each series begins, and the end
        return np.cumsum([0, *map(len, self.series)])


@dataclass(frozen=True)
class SeriesWindow:
    """Where a window's first forecast row stands."""

    series: str
    row: int  # of its series, from 0
    line: int  # of the file
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
    numbers: np.ndarray  # [B] of the windows
    series: np.ndarray  # [B] number of each window's series
    together: int  # windows of the batch in all processes
    idle: bool = False  # none of them is this process's own

    @property
    def scored(self) -> int:
        """Values of all processes' forecasts."""
        return self.together * self.future[0].numel()

    @property
    def tokens(self) -> int:
        """Rows that all processes read."""
        return self.together * self.values.shape[1]

    def pinned(self) -> "ForecastBatch":
        return self._map(Tensor.pin_memory)

    def to(self, device: torch.device) -> "ForecastBatch":
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def _map(self, change) -> "ForecastBatch":
        names = ("values", "marks", "future", "future_marks")
        return replace(self, **{name: change(getattr(self, name)) for name in names})


class Windows:
    """The windows of one part: spans has that part of each series."""

    def __init__(self, rows: Rows, spans: Sequence[RowSpan], past: int, ahead: int) -> None:
        self.rows, self.spans, self.past, self.ahead = rows, tuple(spans), past, ahead
        counts = [span.windows(past, ahead) for span in self.spans]
        # The number of the first window of each series, and the count of all.
        self.bounds = np.cumsum([0, *counts])
        self._first_rows = np.array([span.start - span.lead + past for span in self.spans])
        self._begins = rows.bounds()

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def series_of(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.bounds, numbers, side="right") - 1

    def first_rows(self, numbers: np.ndarray) -> np.ndarray:
        """For each window its first forecast row, within its series."""
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
        """All windows in order, from batch number `start` on; of each batch a share's windows."""
        return self._batches(np.arange(len(self)), size, start, share)

    def shuffled(
        self, size: int, seed: int, epoch: int, start: int = 0, share: Share = Share()
    ) -> Iterator[ForecastBatch]:
        """All windows in an order of this epoch's own, from batch number `start` on."""
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
