"""Numbers as text, and which records they come from."""

from typing import NamedTuple

from ...pages.charts import data_attributes
from ...pages.wording import MINUS
from ..definition import Cell, Published, Value
from ..estimates import Estimate
from .section import Section

NO_RECORD = "\u2013"
# There are runs, and none of them has the measure.
NO_MEASURE = "none"
# Marks intervals that are not over seeds.
OVER_UNITS = "\u2020"
# From here on numbers are written in powers of ten; with thousands separators, later.
LARGE, LARGE_WHOLE = 1e6, 1e9


def shown(value: Value, estimate: Estimate | None) -> tuple[str, str]:
    """The number and its interval, as text; a dash without a record."""
    if estimate is None:
        return NO_RECORD, ""
    number, bounds = _form(value, estimate.value), ""
    if estimate.low is not None and estimate.high is not None:
        low, high = _form(value, estimate.low), _form(value, estimate.high)
        # A value that is equal in all runs, such as a cost, has an interval without width.
        bounds = "" if low == number == high else f"[{low}, {high}]"
        bounds += OVER_UNITS if bounds and estimate.over_units else ""
    return number, bounds


def _form(value: Value, number: float) -> str:
    number /= value.unit
    large = LARGE_WHOLE if "," in value.form else LARGE
    form = value.form if abs(number) < large else "{:.2e}"
    return form.format(number).replace("-", MINUS)


def as_text(cell: Cell, section: Section) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Published):
        return cell.printed
    number = number_of(cell, section)
    return f"{number.text} {number.bounds}".rstrip()


class Number(NamedTuple):
    text: str
    bounds: str
    title: str
    source: dict[str, str]
    """Data attributes; empty without a record."""


def number_of(value: Value, section: Section) -> Number:
    estimate = section.estimate(value)
    if estimate is None:
        if _has_runs(value, section):
            return Number(NO_MEASURE, "", "no run has it", {})
        return Number(NO_RECORD, "", "no record", {})
    source = {"section": section.anchor, **source_of(value), "form": value.form}
    if value.unit != 1:
        source["unit"] = f"{value.unit:g}"
    title = f"{estimate.over}; {', '.join(estimate.sources)}"
    return Number(*shown(value, estimate), title, data_attributes(source))


def _has_runs(value: Value, section: Section) -> bool:
    """Whether the runs exist, so that none is still to be made."""
    arms = [value.arm] if value.minus is None else [value.arm, value.minus]
    return all(section.records.of(arm) for arm in arms)


def source_of(value: Value) -> dict[str, str]:
    """Where a number comes from, so that it can be computed again from the page."""
    source = {"metric": value.metric, "arm": value.arm}
    if value.minus is not None:
        source |= {"minus": value.minus, "minus-metric": value.minus_metric or value.metric}
    for name in ("share", "over_units", "largest"):
        if getattr(value, name):
            source[name.replace("_", "-")] = "yes"
    return source
