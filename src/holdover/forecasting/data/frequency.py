"""How often a series was measured: inferred from its times, continued beyond them.

A frequency is a count of a unit. Times have numbers along it (`positions`) that are one `step` apart,
also where the steps are not of one length, as with months and business days.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .sentences import counted
from .times import TIME

# Units of fixed length in microseconds, the longest first.
FIXED = {
    "week": 7 * 86_400_000_000,
    "day": 86_400_000_000,
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "millisecond": 1_000,
    "microsecond": 1,
}
DAY = FIXED["day"]
# A season of the unit, in microseconds: what a repeated pattern is looked for in. Sub-daily data have
# days, seconds have minutes.
SEASONS = {"hour": DAY, "minute": DAY, "second": 60_000_000}
# The same in numbers of the unit.
COUNTED_SEASONS = {"day": 7, "business day": 5, "week": 52, "month": 12}


@dataclass(frozen=True)
class Frequency:
    count: int
    unit: str  # of FIXED, or business day, month, year
    month_end: bool = False  # months and years: always the last day of the month

    def __str__(self) -> str:
        step = counted(self.count, self.unit)
        return f"{step} (month ends)" if self.month_end else step

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Frequency":
        return cls(**found)

    @property
    def step(self) -> int:
        """What one step adds to `positions`."""
        return self.count * (12 if self.unit == "year" else FIXED.get(self.unit, 1))

    def positions(self, times: np.ndarray) -> np.ndarray:
        """Where times stand: microseconds, months or business days from a fixed origin."""
        if self.unit in FIXED:
            return times.astype(TIME).astype(np.int64)
        if self.unit == "business day":
            return np.busday_count(np.datetime64("1970-01-01"), times.astype("datetime64[D]"))
        return times.astype("datetime64[M]").astype(np.int64)

    def fits(self, times: np.ndarray) -> bool:
        """Whether times follow each other at this frequency."""
        return bool((np.diff(self.positions(times)) == self.step).all())

    def after(self, last: np.datetime64, steps: int) -> np.ndarray:  # [steps]
        """The times that follow."""
        numbers = np.arange(1, steps + 1) * self.count
        last = last.astype(TIME)
        if self.unit in FIXED:
            return last + (numbers * FIXED[self.unit]).astype("timedelta64[us]")
        day = last.astype("datetime64[D]")
        clock = last - day
        if self.unit == "business day":
            return np.busday_offset(day, numbers, roll="forward").astype(TIME) + clock
        month = day.astype("datetime64[M]")
        months = month + numbers * (12 if self.unit == "year" else 1)
        days = (months + 1).astype("datetime64[D]") - 1
        if not self.month_end:
            # A month without that day (February without a 29th) has its last one.
            days = np.minimum(days, months.astype("datetime64[D]") + (day - month))
        return days.astype(TIME) + clock

    @property
    def season(self) -> int:
        """Steps after which a pattern may come again; 1 where none is known."""
        if self.unit in COUNTED_SEASONS:
            return max(1, COUNTED_SEASONS[self.unit] // self.count)
        return max(1, SEASONS.get(self.unit, 0) // (FIXED.get(self.unit, 1) * self.count))

    def steps_in_days(self, days: int) -> int | None:
        """Steps in so many days; None where a step is not a fixed part of them."""
        length = FIXED.get(self.unit, 0) * self.count
        return days * DAY // length if length and days * DAY % length == 0 else None


def infer_frequency(times: np.ndarray) -> Frequency:
    """The frequency of most steps between different times that follow each other."""
    times = times.astype(TIME)
    steps = np.diff(times).astype(np.int64)
    steps = steps[steps > 0]
    days = times.astype("datetime64[D]")
    one_clock = len(np.unique(times - days)) == 1
    if one_clock and steps.min() >= 28 * DAY:
        months = days.astype("datetime64[M]")
        ends = bool((days == (months + 1).astype("datetime64[D]") - 1).all())
        if ends or len(np.unique(days - months.astype("datetime64[D]"))) == 1:
            count = most_common(np.diff(months.astype(np.int64)))
            if count % 12 == 0:
                return Frequency(count // 12, "year", ends)
            return Frequency(count, "month", ends)
    common = most_common(steps)
    weekdays = (days.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday; Monday is 0
    if one_clock and common == DAY and (weekdays < 5).all() and (steps >= 3 * DAY).any():
        return Frequency(1, "business day")
    unit = next(unit for unit, length in FIXED.items() if common % length == 0)
    return Frequency(common // FIXED[unit], unit)


def most_common(steps: np.ndarray) -> int:
    """The most frequent positive number; of equally frequent ones the smallest."""
    values, counts = np.unique(steps[steps > 0], return_counts=True)
    return int(values[np.argmax(counts)])
