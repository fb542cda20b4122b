"""Settings of evaluating a forecaster and of forecasting with it."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ..runs.settings import build
from .data.options import TableOptions

if TYPE_CHECKING:
    from .folder import SavedForecaster

Part = Literal["train", "valid", "test"]
Options = TypeVar("Options", bound=TableOptions)


@dataclass(frozen=True, kw_only=True)
class ForecastEvalOptions(TableOptions):
    """What to score, and against which other forecasters."""

    model: str = ""
    """Folder of a forecaster, or of the run that trained it. Without data it is scored on its training
    file."""
    against: tuple[str, ...] = ()
    """Folders of other forecasters to score on the same windows; repeat and seasonal are always
    included."""
    part: Part = "test"
    """Part of the series; all its windows are scored."""
    split: str | None = None
    """Training, validation and test parts, as in training; defaults to the forecaster's own."""
    rows: int = 32
    """Windows of a batch."""
    draws: int = 2000
    """Bootstrap draws for each interval."""
    seed: int = 0
    """Seed for these draws."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to forecast on."""
    plots: bool = True
    """Draw the error at each step."""
    output: Path = Path("runs/forecast-eval")
    """Folder for the record and the plots."""

    def __post_init__(self) -> None:
        self.check_given(model="runs/forecast")
        self.check_at_least(rows=1, draws=1)


@dataclass(frozen=True, kw_only=True)
class PredictOptions(TableOptions):
    """What to forecast, and where to write it."""

    model: str = ""
    """Folder of a forecaster, or of the run that trained it. Without data it forecasts the rows after
    the end of its training file."""
    output: Path = Path("runs/forecast.csv")
    """The CSV of the forecast."""
    plot: bool = True
    """Draw the last rows and the forecast, as PNG and SVG next to the CSV."""
    history: int | None = None
    """Rows to draw before the forecast; defaults to as many as the forecaster reads."""
    columns: tuple[str, ...] = ()
    """Columns to draw; defaults to the first eight that are forecast."""
    series: str | None = None
    """Series to draw from a file with several; defaults to the first."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to forecast on."""

    def __post_init__(self) -> None:
        self.check_given(model="runs/forecast")
        self.check_at_least(history=1)
        if self.output.is_dir():
            raise ValueError(f"output={self.output} is a folder: name a CSV, as in forecast.csv.")


def with_trained_data(options: Options, saved: "SavedForecaster") -> Options:
    """The settings, completed with those of the forecaster's training if they name no data."""
    if options.data or saved.run is None:
        return options
    trained = build(TableOptions, _table_settings(saved.run["options"]))
    unset = [
        field.name
        for field in fields(TableOptions)
        if getattr(options, field.name) == field.default
    ]
    return replace(options, **{name: getattr(trained, name) for name in unset})


def _table_settings(options: dict[str, Any]) -> dict[str, Any]:
    return {field.name: options[field.name] for field in fields(TableOptions)}
