"""Means over seeds, with what they leave open."""

import math
from collections.abc import Sequence

import numpy as np


def with_spread(values: Sequence[float], form: str = "{:.3f}") -> str:
    """The mean, and of several seeds its 95% interval by Student's t; nothing of none."""
    if not values:
        return ""
    mean = form.format(np.mean(values))
    if len(values) == 1:
        return mean
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    bounds = ", ".join(form.format(np.mean(values) + sign * half) for sign in (-1, 1))
    return f"{mean} [{bounds}] ({len(values)} seeds)"
