"""Plots of forecasts: the error at each step ahead, and forecasts after the rows they follow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..evaluation.plots import Paths, look_of, need_values, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# At most this many panels, unless columns are named.
MOST_PANELS = 8
OBSERVED = "#444444"


@dataclass(frozen=True)
class Drawn:
    """One column: its history, its forecasts, and the true values if they are known."""

    column: str
    times: np.ndarray  # [history]
    observed: np.ndarray  # [history]
    future: np.ndarray  # [ahead] times
    forecasts: Mapping[str, np.ndarray]  # [ahead] of each forecaster
    came: np.ndarray | None = None  # [ahead] true values


def error_by_step(path_stem: str | Path, rows: Mapping[str, Mapping[str, Any]]) -> Paths:
    """Scaled MSE and MAE of each forecaster in an evaluation, at every step ahead."""
    need_values(rows, "errors by step")

    def draw(panels: "Sequence[Axes]") -> None:
        from matplotlib.ticker import MaxNLocator

        for axes, measure in zip(panels, ("mse", "mae"), strict=True):
            for number, (name, row) in enumerate(rows.items()):
                errors = row["scaled"]["by_step"][measure]
                steps = np.arange(1, len(errors) + 1)
                every = max(1, len(errors) // 10)
                axes.plot(steps, errors, label=name, markevery=every, **look_of(number))
            axes.set_xlabel("Steps ahead")
            axes.set_ylabel(f"{measure.upper()} (scaled values)")
            axes.set_ylim(bottom=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[0].legend()

    return write_figure(path_stem, draw, panels=2)


def forecast_figure(path_stem: str | Path, title: str, drawn: Sequence[Drawn]) -> Paths:
    """One panel per column, in its own units."""
    need_values({title: drawn}, "forecasts")

    def draw(panels: "Sequence[Axes]") -> None:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        for axes, one in zip(panels, drawn, strict=True):
            times, observed = one.times, one.observed
            if one.came is not None:
                times = np.concatenate([times, one.future])
                observed = np.concatenate([observed, one.came])
            axes.plot(times, observed, color=OBSERVED, linewidth=1.2, label="observed")
            for number, (name, values) in enumerate(one.forecasts.items()):
                # Start at the last observed row, or a single step would not be a line.
                joined = np.concatenate([one.observed[-1:], values])
                at = np.concatenate([one.times[-1:], one.future])
                look: dict[str, Any] = {**look_of(number), "marker": ""}
                axes.plot(at, joined, label=name, **look)
            axes.axvline(one.times[-1], color=OBSERVED, linewidth=0.7, linestyle=":")
            axes.set_ylabel(one.column)
            locator = AutoDateLocator(maxticks=8)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        panels[0].set_title(title, fontsize=10)
        panels[0].legend(fontsize=8)

    return write_figure(path_stem, draw, panels=len(drawn), stacked=True)


def drawn_columns(outputs: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The columns to draw, out of those that are forecast."""
    unknown = [column for column in wanted if column not in outputs]
    if unknown:
        raise ValueError(
            f"--columns {unknown[0]} is not forecast: the forecaster's columns are "
            f"{', '.join(outputs)}; give some of them."
        )
    return list(wanted) or list(outputs[:MOST_PANELS])
