"""Whether the rows of a series follow each other at one frequency, and what is said where they do not.

* Unsorted times and mixed frequencies are always refused: no row would be the step after another.
* Gaps and repeated times are refused too, unless they are to be kept: then windows take the rows as they
  stand, as the papers do, and the record says so.
* A gap is one long step; steps of another length in a row are another frequency.
"""

import numpy as np

from .frequency import FIXED, Frequency, infer_frequency
from .options import Irregular
from .sentences import counted, listed_lines

# So many equal steps of another length in a row are no gaps any more.
OTHER_FREQUENCY = 3


def check_regular(
    times: np.ndarray, lines: np.ndarray, name: str, irregular: Irregular = "refuse"
) -> tuple[Frequency, list[str]]:
    """The frequency, and a note for everything irregular that was kept."""
    if len(np.unique(times)) < 2:
        raise ValueError(
            f"{name} has {counted(len(times), 'row')} at a single time, and no frequency can be "
            "inferred from that: at least two different times are needed."
        )
    _refuse_unsorted(times, lines, name)
    frequency = infer_frequency(times)
    steps = np.diff(frequency.positions(times))
    if irregular == "refuse":
        _refuse_repeated(times, lines, name)
    _refuse_mixed(steps, frequency, lines, name)
    gaps = np.flatnonzero(steps > frequency.step)
    if irregular == "refuse" and gaps.size:
        raise ValueError(_gap_sentence(steps, gaps, frequency, times, lines, name))
    notes = []
    if (steps == 0).any():
        repeated = lines[1:][steps == 0].tolist()
        notes.append(f"{name}: repeated times kept as they stand ({listed_lines(repeated)})")
    if gaps.size:
        missing = int((steps[gaps] // frequency.step - 1).sum())
        after = listed_lines(lines[gaps].tolist())
        notes.append(f"{name}: {counted(missing, 'missing row')} not filled in (after {after})")
    return frequency, notes


def _refuse_unsorted(times: np.ndarray, lines: np.ndarray, name: str) -> None:
    back = np.flatnonzero(np.diff(times) < np.timedelta64(0))
    if not back.size:
        return
    row = int(back[0]) + 1
    others = f", and {back.size - 1} more like it" if back.size > 1 else ""
    raise ValueError(
        f"{name}, line {lines[row]}: {shown_time(times[row])} stands behind "
        f"{shown_time(times[row - 1])} of line {lines[row - 1]}{others}; sort the rows by time."
    )


def _refuse_repeated(times: np.ndarray, lines: np.ndarray, name: str) -> None:
    same = np.flatnonzero(np.diff(times) == np.timedelta64(0)) + 1
    if not same.size:
        return
    row = int(same[0])
    others = f" (in all {listed_lines(lines[same].tolist())})" if same.size > 1 else ""
    raise ValueError(
        f"{name}, line {lines[row]}: the time {shown_time(times[row])} is there already, in line "
        f"{lines[row - 1]}{others}; remove one of them, name the series in a column unique_id, or say "
        "irregular=keep to read the rows as they stand."
    )


def _refuse_mixed(steps: np.ndarray, frequency: Frequency, lines: np.ndarray, name: str) -> None:
    other = (steps > 0) & (steps != frequency.step)
    uneven = np.flatnonzero(other & (steps % frequency.step != 0))
    run = _first_run(np.where(other, steps, 0), OTHER_FREQUENCY)
    row = min((int(found) for found in (*uneven[:1], run) if found is not None), default=None)
    if row is None:
        return
    raise ValueError(
        f"{name}: mixed frequencies; most rows are {frequency} apart, but lines {lines[row]} and "
        f"{lines[row + 1]} are {_length(int(steps[row]), frequency)} apart: bring the rows to one "
        "frequency (round the times, resample, or split the file)."
    )


def _first_run(steps: np.ndarray, length: int) -> int | None:
    """Where `length` equal steps other than 0 begin."""
    if len(steps) < length:
        return None
    runs = np.lib.stride_tricks.sliding_window_view(steps, length)
    found = np.flatnonzero((runs == runs[:, :1]).all(1) & (runs[:, 0] != 0))
    return int(found[0]) if found.size else None


def _gap_sentence(
    steps: np.ndarray,
    gaps: np.ndarray,
    frequency: Frequency,
    times: np.ndarray,
    lines: np.ndarray,
    name: str,
) -> str:
    missing = steps[gaps] // frequency.step - 1
    row = int(gaps[0])
    others = f", {int(missing.sum()):,} in {len(gaps)} gaps in all" if len(gaps) > 1 else ""
    return (
        f"{name}: between line {lines[row]} ({shown_time(times[row])}) and line {lines[row + 1]} "
        f"({shown_time(times[row + 1])}) {counted(int(missing[0]), 'row')} "
        f"{'is' if missing[0] == 1 else 'are'} missing where rows are {frequency} apart{others}; fill "
        "them in, or say irregular=keep to read the rows as they stand."
    )


def _length(step: int, frequency: Frequency) -> str:
    if frequency.unit not in FIXED:
        unit = "month" if frequency.unit == "year" else frequency.unit
        return counted(step, unit)
    unit = next(unit for unit, length in FIXED.items() if step % length == 0)
    return counted(step // FIXED[unit], unit)


def shown_time(time: np.datetime64) -> str:
    """To the second, or finer where it is."""
    whole = time.astype("datetime64[s]")
    return str(whole if whole == time else time).replace("T", " ")
