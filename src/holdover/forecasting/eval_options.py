"""Settings of evaluating a forecaster and of asking it for the future."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..runs.settings import build
from .data.options import TableOptions
from .folder import SavedForecaster

Part = Literal["train", "valid", "test"]
Options = TypeVar("Options", bound=TableOptions)


@dataclass(frozen=True, kw_only=True)
class ForecastEvalOptions(TableOptions):
    """What is scored, and beside what."""

    model: str = ""
    """Folder of a forecaster, or of the run that trained it. Without data it is scored on the file that
    it was trained on."""
    against: tuple[str, ...] = ()
    """Folders of other forecasters, scored on the same windows; repeat and seasonal always are."""
    part: Part = "test"
    """Part of the series whose windows are scored, all of them."""
    split: str | None = None
    """Training, validation and test as in training; without it the training's own."""
    rows: int = 32
    """Windows of a batch."""
    draws: int = 2000
    """Draws behind each interval."""
    seed: int = 0
    """Of these draws."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to forecast."""
    plots: bool = True
    """Draw the error at each step."""
    output: Path = Path("runs/forecast-eval")
    """Folder for the record and the plots."""

    def __post_init__(self) -> None:
        check_model(self.model)
        for name in ("rows", "draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")

    @classmethod
    def of(cls, **settings: Any) -> "ForecastEvalOptions":
        return build(cls, settings)


@dataclass(frozen=True, kw_only=True)
class PredictOptions(TableOptions):
    """What is forecast, and where it is written."""

    model: str = ""
    """Folder of a forecaster, or of the run that trained it. Without data it forecasts what follows the
    file that it was trained on."""
    output: Path = Path("runs/forecast.csv")
    """The CSV of the forecast."""
    plot: bool = True
    """Draw the last rows and the forecast beside the CSV, as PNG and SVG."""
    history: int | None = None
    """Rows that are drawn in front of the forecast; without it as many as the forecaster reads."""
    columns: tuple[str, ...] = ()
    """Columns that are drawn; without it the first eight that are forecast."""
    series: str | None = None
    """Of a file with several series the one that is drawn; without it the first."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to forecast."""

    def __post_init__(self) -> None:
        check_model(self.model)
        if self.history is not None and self.history < 1:
            raise ValueError(f"history={self.history} must be at least 1.")
        if self.output.is_dir():
            raise ValueError(f"output={self.output} is a folder: name a CSV, as in forecast.csv.")

    @classmethod
    def of(cls, **settings: Any) -> "PredictOptions":
        return build(cls, settings)


def check_model(model: str) -> None:
    if not model:
        raise ValueError("Say which model: for example --model runs/forecast.")


def with_trained_data(options: Options, saved: SavedForecaster) -> Options:
    """The settings themselves, or without a file those of the forecaster's training in place of it."""
    if options.data or saved.run is None:
        return options
    before = build(TableOptions, _known(saved.run["options"]))
    unsaid = [
        field.name
        for field in fields(TableOptions)
        if getattr(options, field.name) == field.default
    ]
    return replace(options, **{name: getattr(before, name) for name in unsaid})


def _known(options: dict[str, Any]) -> dict[str, Any]:
    return {field.name: options[field.name] for field in fields(TableOptions)}
