"""Which rows are for training, validation and test.

* By months of 30 days, as the ETT papers count them (12/4/4: hourly rows 8640/2880/2880), or by shares
  (70/10/20: whole rows rounded down for training and test, the rest for validation).
* The rows of a part are those that are forecast in it. Validation and test read `past` rows in front of
  theirs (their lead), or their first rows could not be forecast; training has none.
"""

import re
from dataclasses import dataclass

from .frequency import Frequency
from .sentences import counted

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
