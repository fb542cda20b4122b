"""Pieces of the sentences that refuse a file: which lines, which cell."""

from collections.abc import Sequence

# More lines than these are counted, not listed.
LISTED = 5
SHOWN = 30


def listed_lines(lines: Sequence[int]) -> str:
    """'line 7', 'lines 7 and 9', 'lines 7, 9, 12, 15, 20 and 31 more'."""
    if len(lines) == 1:
        return f"line {lines[0]}"
    shown = [str(line) for line in lines[:LISTED]]
    left = len(lines) - len(shown)
    last = f"{left} more" if left else shown.pop()
    return f"lines {', '.join(shown)} and {last}"


def shown_cell(cell: str) -> str:
    return repr(cell if len(cell) <= SHOWN else cell[:SHOWN] + "...")


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
