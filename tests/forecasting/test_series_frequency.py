"""Frequencies: inferred, continued beyond the end, and the features of their times."""

import numpy as np
import pandas
import pytest

from holdover.forecasting.data.frequency import (
    BY_UNIT,
    Frequency,
    feature_names,
    infer_frequency,
    time_features,
)

# pandas' name, ours, steps of a season
KNOWN = [
    ("250ms", "250 milliseconds", 1),
    ("s", "1 second", 60),
    ("10s", "10 seconds", 6),
    ("min", "1 minute", 1440),
    ("10min", "10 minutes", 144),
    ("15min", "15 minutes", 96),
    ("90min", "90 minutes", 16),
    ("h", "1 hour", 24),
    ("6h", "6 hours", 4),
    ("D", "1 day", 7),
    ("B", "1 business day", 5),
    ("W", "1 week", 52),
    ("2W", "2 weeks", 26),
    ("MS", "1 month", 12),
    ("ME", "1 month (month ends)", 12),
    ("QS", "3 months", 4),
    ("QE", "3 months (month ends)", 4),
    ("YS", "1 year", 1),
    ("YE", "1 year (month ends)", 1),
]


def times_of(name, rows=40, start="2019-11-27 00:00"):
    return pandas.date_range(start, periods=rows, freq=name).to_numpy().astype("datetime64[us]")


@pytest.mark.parametrize(("name", "ours", "season"), KNOWN, ids=[row[0] for row in KNOWN])
def test_inferred_and_continued(name, ours, season):
    times = times_of(name)
    frequency = infer_frequency(times[:25])
    assert str(frequency) == ours and frequency.season == season
    assert frequency.fits(times)
    assert (frequency.after(times[24], 15) == times[25:]).all()
    assert Frequency.from_json(frequency.to_json()) == frequency


def test_a_time_of_day_stays():
    times = times_of("D", start="2020-01-30 06:30")
    assert (infer_frequency(times[:10]).after(times[9], 30) == times[10:]).all()
    monthly = times_of("MS", start="2020-01-01 06:30") + np.timedelta64(14, "D")
    assert (infer_frequency(monthly[:10]).after(monthly[9], 30) == monthly[10:]).all()


def test_gaps_do_not_hide_the_frequency():
    for name, ours in (("h", "1 hour"), ("MS", "1 month"), ("B", "1 business day")):
        assert str(infer_frequency(np.delete(times_of(name), [5, 6, 20]))) == ours


def test_a_leap_day_comes_again_as_the_last_of_february():
    yearly = Frequency(1, "year").after(np.datetime64("2020-02-29"), 4)
    assert [str(day)[:10] for day in yearly] == [
        "2021-02-28",
        "2022-02-28",
        "2023-02-28",
        "2024-02-29",
    ]


def test_five_business_days_are_also_five_days():
    week = times_of("B", 5, "2020-01-06")
    assert str(infer_frequency(week)) == "1 day"
    assert Frequency(1, "business day").fits(week) and not Frequency(1, "hour").fits(week)


def reference(times, unit):
    """Informer's features as in the code of its paper, by Python's own calendar."""
    rows = []
    for time in times.astype("datetime64[us]").tolist():
        value = {
            "second of minute": time.second / 59,
            "minute of hour": time.minute / 59,
            "hour of day": time.hour / 23,
            "day of week": time.weekday() / 6,
            "day of month": (time.day - 1) / 30,
            "day of year": (time.timetuple().tm_yday - 1) / 365,
            "week of year": (time.isocalendar().week - 1) / 52,
            "month of year": (time.month - 1) / 11,
        }
        rows.append([value[name] - 0.5 for name in BY_UNIT[unit]])
    return np.array(rows)


@pytest.mark.parametrize("unit", BY_UNIT)
def test_time_features_are_informers(unit):
    """Over decades: leap years, every weekday as New Year, every hour of the day."""
    times = times_of("31h30min11s", 9000, "2000-01-01")
    found = time_features(times, Frequency(1, unit))
    assert found.dtype == np.float32 and found.shape == (9000, len(BY_UNIT[unit]))
    assert np.abs(found - reference(times, unit)).max() < 1e-6
    assert found.min() >= -0.5 and found.max() <= 0.5


def test_which_features():
    assert feature_names(Frequency(1, "hour")) == (
        "hour of day",
        "day of week",
        "day of month",
        "day of year",
    )
    assert feature_names(Frequency(15, "minute"))[0] == "minute of hour"
    assert len(feature_names(Frequency(1, "month"))) == 1


def test_times_before_1970():
    times = np.array(["1969-12-31T23:00", "1900-03-01T05:00"], dtype="datetime64[us]")
    found = time_features(times, Frequency(1, "hour"))
    assert np.abs(found - reference(times, "hour")).max() < 1e-6
