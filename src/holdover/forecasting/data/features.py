"""Time features: what a clock and a calendar say, each as a number from -0.5 to 0.5.

The features of Informer's `timeF` encoding, in its order:

| frequency | features |
|---|---|
| year, month | month of year |
| week | day of month, week of year (ISO) |
| day, business day | day of week, day of month, day of year |
| hour | hour of day, and those of a day |
| minute | minute of hour, and those of an hour |
| second and finer | second of minute, and those of a minute |

Original and ours differ in one place: a year has none there, and a model of yearly data would have no
marks to read.
"""

from collections.abc import Callable

import numpy as np

from .frequency import Frequency


def _part(times: np.ndarray, whole: str, part: str) -> np.ndarray:
    """Number of the part within the whole, from 0."""
    of_part = times.astype(f"datetime64[{part}]")
    beginning = times.astype(f"datetime64[{whole}]").astype(of_part.dtype)
    return (of_part - beginning).astype(np.float64)


def _day_of_week(times: np.ndarray) -> np.ndarray:
    return (times.astype("datetime64[D]").astype(np.int64) + 3) % 7


def _week_of_year(times: np.ndarray) -> np.ndarray:
    # An ISO week belongs to the year of its Thursday.
    days = times.astype("datetime64[D]")
    thursday = days + (3 - _day_of_week(times))
    return _part(thursday, "Y", "D") // 7


# Name: the number from 0, and the largest it can be.
FEATURES: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int]] = {
    "second of minute": (lambda times: _part(times, "m", "s"), 59),
    "minute of hour": (lambda times: _part(times, "h", "m"), 59),
    "hour of day": (lambda times: _part(times, "D", "h"), 23),
    "day of week": (_day_of_week, 6),
    "day of month": (lambda times: _part(times, "M", "D"), 30),
    "day of year": (lambda times: _part(times, "Y", "D"), 365),
    "week of year": (_week_of_year, 52),
    "month of year": (lambda times: _part(times, "Y", "M"), 11),
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
    found = []
    for name in feature_names(frequency):
        number, largest = FEATURES[name]
        found.append(number(times) / largest - 0.5)
    return np.stack(found, axis=1).astype(np.float32)
