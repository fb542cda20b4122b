"""Cells that should be numbers."""

from collections.abc import Sequence

import numpy as np

from .sentences import listed_lines, shown_cell

MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-", "nat"}


def parse_numbers(
    cells: Sequence[str], lines: np.ndarray, name: str, column: str
) -> np.ndarray:  # [rows] float64
    try:
        values = np.array(cells, dtype=np.float64)
        if np.isfinite(values).all():
            return values
    except ValueError:
        pass
    raise ValueError(_sentence(cells, lines, name, column))


def _sentence(cells: Sequence[str], lines: np.ndarray, name: str, column: str) -> str:
    missing, wrong = [], []
    for line, cell in zip(lines.tolist(), cells, strict=True):
        if cell.strip().lower() in MISSING:
            missing.append(line)
        elif not _is_number(cell):
            wrong.append((line, cell))
    if wrong:
        line, cell = wrong[0]
        others = f" (and {len(wrong) - 1} more cells of this column)" if len(wrong) > 1 else ""
        return (
            f"{name}, line {line}, column {column}: {shown_cell(cell)} is not a finite number{others}; "
            "correct it, write decimals with a point, or remove the column."
        )
    return (
        f"{name}, column {column}: no value in {listed_lines(missing)}; a forecast needs every one, so "
        "fill them in or remove the column."
    )


def _is_number(cell: str) -> bool:
    try:
        return bool(np.isfinite(float(cell)))
    except ValueError:
        return False
