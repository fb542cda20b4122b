"""Numbers and verdicts in words, and text made safe for HTML."""

import html
import math
from collections.abc import Mapping
from typing import Any

MINUS = "\u2212"


def escaped(text: str) -> str:
    """Text as HTML that a browser shows letter by letter as it is.

    A browser would turn a bare carriage return into a line feed, and does not take a zero at all.
    """
    return html.escape(text).replace("\r", "&#13;").replace("\0", "\ufffd")


def signed(value: float, decimals: int) -> str:
    """A difference with its sign, the minus as wide as the plus."""
    sign = "" if round(value, decimals) == 0 else MINUS if value < 0 else "+"
    return f"{sign}{abs(value):.{decimals}f}"


def number(value: float) -> str:
    decimals = 2 if abs(value) < 100 else 1 if abs(value) < 1000 else 0
    return f"{value:,.{decimals}f}"


def interval(found: Mapping[str, Any]) -> str:
    """[low, high] of a plain number, or nothing where it is not known."""
    if found.get("low") is None or found.get("high") is None:
        return ""
    return f"[{number(found['low'])}, {number(found['high'])}]"


def signed_interval(found: Mapping[str, Any], decimals: int = 3) -> str:
    if found.get("low") is None or found.get("high") is None:
        return ""
    return f"[{signed(found['low'], decimals)}, {signed(found['high'], decimals)}]"


def side(found: Mapping[str, Any]) -> int:
    """-1 or +1: the whole interval lies on that side of zero; 0: it cannot be told."""
    low, high = found.get("low"), found.get("high")
    if low is None or high is None:
        return 0
    return -1 if high < 0 else 1 if low > 0 else 0


def where_zero_is(found: Mapping[str, Any]) -> str:
    if found.get("low") is None or found.get("high") is None:
        return "there is no interval to judge it by"
    return "the interval holds zero" if side(found) == 0 else "the interval is clear of zero"


def count(many: float, thing: str) -> str:
    return f"{many:,.0f} {thing}{'' if many == 1 else 's'}"


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
    """What a difference of losses means for perplexity, which is their exponential."""
    return f"{100 * abs(math.expm1(nats)):.1f}\u00a0%"
