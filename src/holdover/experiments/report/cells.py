"""Numbers as they are shown."""

from ...pages.charts import attributes
from ...pages.wording import MINUS, escaped
from ..definition import Cell, Published, Value
from ..estimates import Estimate
from .section import Section

NOTHING = "\u2013"
# Where there are runs, and none of them has it.
NEVER = "none"
# Behind intervals that are not over seeds.
OVER_UNITS = "\u2020"
# From here on digits are no news; whole numbers, with their commas, are read longer.
LARGE, LARGE_WHOLE = 1e6, 1e9


def shown(value: Value, found: Estimate | None) -> tuple[str, str]:
    """The number and its interval, as text; without a record a dash."""
    if found is None:
        return NOTHING, ""
    number, bounds = _form(value, found.value), ""
    if found.low is not None and found.high is not None:
        low, high = _form(value, found.low), _form(value, found.high)
        # What is the same in all runs, such as a cost, has an interval of no width.
        bounds = "" if low == number == high else f"[{low}, {high}]"
        bounds += OVER_UNITS if bounds and found.over_units else ""
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
    found = section.estimate(cell)
    if found is None and runs_lack(cell, section):
        return NEVER
    return " ".join(part for part in shown(cell, found) if part)


def runs_lack(value: Value, section: Section) -> bool:
    """That there are runs, and not that they are still to be made."""
    arms = [value.arm] if value.minus is None else [value.arm, value.minus]
    return all(section.records.of(arm) for arm in arms)


def as_html(cell: Cell, section: Section) -> str:
    """A table's cell; what was measured says where it comes from."""
    if isinstance(cell, str):
        return f"<td>{escaped(cell)}</td>"
    if isinstance(cell, Published):
        return f'<td class="published">{escaped(cell.printed)}</td>'
    return f"<td>{measured(cell, section)}</td>"


def measured(value: Value, section: Section) -> str:
    found = section.estimate(value)
    number, bounds = shown(value, found)
    if found is None:
        never = runs_lack(value, section)
        told = "no run has it" if never else "no record"
        return f'<span class="missing" title="{told}">{NEVER if never else number}</span>'
    source = {"section": section.anchor, **source_of(value), "form": value.form}
    if value.unit != 1:
        source["unit"] = f"{value.unit:g}"
    told = f"{found.over}; {', '.join(found.sources)}"
    return (
        f'<span class="measured"{attributes(source)} title="{escaped(told)}"><b>{number}</b>'
        f"{f' <small>{bounds}</small>' if bounds else ''}</span>"
    )


def source_of(value: Value) -> dict[str, str]:
    """What a page tells of where a number comes from, so that it can be computed again."""
    found = {"metric": value.metric, "arm": value.arm}
    if value.minus is not None:
        found |= {"minus": value.minus, "minus-metric": value.minus_metric or value.metric}
    for name in ("share", "over_units", "largest"):
        if getattr(value, name):
            found[name.replace("_", "-")] = "yes"
    return found
