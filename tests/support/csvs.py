"""Small CSVs of series, written for a test."""

import numpy as np
import pytest


def hourly(rows, start="2020-01-01T00"):
    return np.datetime64(start, "s") + np.arange(rows) * np.timedelta64(3600, "s")


def values_of(rows, columns, seed=0):
    """A random walk for each column, of different scales."""
    steps = np.random.default_rng(seed).normal(size=(rows, columns))
    return steps.cumsum(0) * 10.0 ** np.arange(columns)


def wide(path, times, values, columns=None, time_column="date"):
    columns = columns or [f"c{number}" for number in range(values.shape[1])]
    lines = [",".join([time_column, *columns])]
    for time, row in zip(times, values, strict=True):
        lines.append(",".join([str(time).replace("T", " "), *map(repr, row.tolist())]))
    path.write_text("\n".join(lines) + "\n")
    return path


def written(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def refused(call, *arguments, **options):
    """What is said where a call is refused: one sentence."""
    with pytest.raises((ValueError, OSError)) as said:
        call(*arguments, **options)
    sentence = str(said.value)
    assert sentence.endswith(".") and "\n" not in sentence and ".." not in sentence
    return sentence
