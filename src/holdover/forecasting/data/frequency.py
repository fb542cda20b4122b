"""How often a series was measured, the times that follow it, and the calendar features of its times.

A frequency is a count of a unit, as in 15 minutes. `positions` numbers times so that they are one `step`
apart, even if steps differ in length, as months and business days do.

The features are those of Informer's `timeF` encoding, in its order, each from -0.5 to 0.5:

| frequency | features |
|---|---|
| year, month | month of year |
| week | day of month, week of year (ISO) |
| day, business day | day of week, day of month, day of year |
| hour | hour of day, and those of a day |
| minute | minute of hour, and those of an hour |
| second and finer | second of minute, and those of a minute |

One thing differs from the original: yearly data have no features there, so a model could not read any.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .cells import TIME, counted, import_pandas

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
# The season that a unit's data repeat after, in microseconds: a day for hours and minutes, a minute for
# seconds.
SEASONS = {"hour": DAY, "minute": DAY, "second": 60_000_000}
# The season of longer units, in steps.
COUNTED_SEASONS = {"day": 7, "business day": 5, "week": 52, "month": 12}


@dataclass(frozen=True)
class Frequency:
    count: int
    unit: str  # a key of FIXED, or business day, month, year
    month_end: bool = False  # months and years: always the last day of the month

    def __str__(self) -> str:
        step = counted(self.count, self.unit)
        return f"{step} (month ends)" if self.month_end else step

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Frequency":
        return cls(**fields)

    @property
    def step(self) -> int:
        """The difference of the `positions` of consecutive times."""
        return self.count * (12 if self.unit == "year" else FIXED.get(self.unit, 1))

    def positions(self, times: np.ndarray) -> np.ndarray:
        """Times as numbers: microseconds, months or business days since a fixed origin."""
        if self.unit in FIXED:
            return times.astype(TIME).astype(np.int64)
        if self.unit == "business day":
            return np.busday_count(np.datetime64("1970-01-01"), times.astype("datetime64[D]"))
        return times.astype("datetime64[M]").astype(np.int64)

    def fits(self, times: np.ndarray) -> bool:
        """Whether consecutive times are one step apart."""
        return bool((np.diff(self.positions(times)) == self.step).all())

    def after(self, last: np.datetime64, steps: int) -> np.ndarray:  # [steps]
        """The next times."""
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
            # If a month lacks that day (February 30), take its last day.
            days = np.minimum(days, months.astype("datetime64[D]") + (day - month))
        return days.astype(TIME) + clock

    @property
    def season(self) -> int:
        """Steps of a season; 1 if none is known."""
        if self.unit in COUNTED_SEASONS:
            return max(1, COUNTED_SEASONS[self.unit] // self.count)
        return max(1, SEASONS.get(self.unit, 0) // (FIXED.get(self.unit, 1) * self.count))

    def steps_in_days(self, days: int) -> int | None:
        """Steps in a number of days; None if that is not a whole number of steps."""
        length = FIXED.get(self.unit, 0) * self.count
        return days * DAY // length if length and days * DAY % length == 0 else None


def infer_frequency(times: np.ndarray) -> Frequency:
    """The most common step between consecutive times that differ."""
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
    """The most frequent positive number; the smallest one if several tie."""
    values, counts = np.unique(steps[steps > 0], return_counts=True)
    return int(values[np.argmax(counts)])


# Name: its value in a pandas.DatetimeIndex, from 0, and the largest possible value.
FEATURES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "second of minute": (lambda times: times.second, 59),
    "minute of hour": (lambda times: times.minute, 59),
    "hour of day": (lambda times: times.hour, 23),
    "day of week": (lambda times: times.day_of_week, 6),
    "day of month": (lambda times: times.day - 1, 30),
    "day of year": (lambda times: times.day_of_year - 1, 365),
    "week of year": (lambda times: times.isocalendar().week - 1, 52),
    "month of year": (lambda times: times.month - 1, 11),
}
OF_DAY = ("day of week", "day of month", "day of year")
OF_HOUR = ("hour of day", *OF_DAY)
OF_MINUTE = ("minute of hour", *OF_HOUR)
OF_SECOND = ("second of minute", *OF_MINUTE)
BY_UNIT = {
    "year": ("month of year",),
    "month": ("month of year",),
    "week": ("day of month", "week of year"),
    "day": OF_DAY,
    "business day": OF_DAY,
    "hour": OF_HOUR,
    "minute": OF_MINUTE,
    "second": OF_SECOND,
    "millisecond": OF_SECOND,
    "microsecond": OF_SECOND,
}


def feature_names(frequency: Frequency) -> tuple[str, ...]:
    return BY_UNIT[frequency.unit]


def time_features(times: np.ndarray, frequency: Frequency) -> np.ndarray:  # [T, F] float32
    index = import_pandas().DatetimeIndex(times)
    columns = []
    for name in feature_names(frequency):
        value, largest = FEATURES[name]
        columns.append(np.asarray(value(index), dtype=np.float64) / largest - 0.5)
    return np.stack(columns, axis=1).astype(np.float32)
