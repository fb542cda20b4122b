"""Numbers, intervals and sizes as text."""

import math
from collections.abc import Mapping
from typing import Any

MINUS = "\u2212"


def signed(value: float, decimals: int) -> str:
    """A difference with its sign, the minus as wide as the plus."""
    sign = "" if round(value, decimals) == 0 else MINUS if value < 0 else "+"
    return f"{sign}{abs(value):.{decimals}f}"


def number(value: float) -> str:
    decimals = 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    return f"{value:,.{decimals}f}"


def _has_interval(measure: Mapping[str, Any]) -> bool:
    return measure.get("low") is not None and measure.get("high") is not None


def interval(measure: Mapping[str, Any]) -> str:
    """[low, high] of a plain number; empty without an interval."""
    if not _has_interval(measure):
        return ""
    return f"[{number(measure['low'])}, {number(measure['high'])}]"


def signed_interval(measure: Mapping[str, Any], decimals: int = 3) -> str:
    if not _has_interval(measure):
        return ""
    return f"[{signed(measure['low'], decimals)}, {signed(measure['high'], decimals)}]"


def side(measure: Mapping[str, Any]) -> int:
    """-1 or +1 if the whole interval lies on that side of zero; 0 if it is undecided."""
    if not _has_interval(measure):
        return 0
    return -1 if measure["high"] < 0 else 1 if measure["low"] > 0 else 0


def zero_in_interval(measure: Mapping[str, Any]) -> str:
    if not _has_interval(measure):
        return "there is no interval to judge it by"
    return "the interval includes zero" if side(measure) == 0 else "the interval excludes zero"


def count(number: float, thing: str) -> str:
    return f"{number:,.0f} {thing}{'' if number == 1 else 's'}"


def size(octets: float) -> str:
    """Bytes, in the decimal unit that leaves few digits."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if octets >= unit:
            value = octets / unit
            return f"{value:.1f} {name}" if value < 100 else f"{value:.0f} {name}"
    return count(octets, "byte")


def scaled(value: float) -> str:
    """A large count with its thousands in words: 13.4 million."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 90 else f"{minutes / 60:.1f} hours"


def percent(nats: float) -> str:
    """A difference of losses as a change of perplexity, which is their exponential."""
    return f"{100 * abs(math.expm1(nats)):.1f}\u00a0%"
