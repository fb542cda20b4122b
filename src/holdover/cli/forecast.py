"""The verb forecast: train a forecaster of series, score it, forecast, draw."""

import argparse
from pathlib import Path

from .verb import OptionsVerb, Parser, TrainingVerb, Verb

VERBS = (
    TrainingVerb(
        name="forecast train",
        help="train a forecaster on a CSV or a named data set",
        description="Train a forecaster: informer (with rsa=true in its shape RSA-Informer), dlinear, "
        "lstm. repeat and seasonal have nothing to learn and are saved at once. The folder holds the "
        "weights, the columns and the scaler.",
        options="forecasting.options:ForecastOptions",
        run="forecasting.training:train_forecaster",
    ),
    OptionsVerb(
        name="forecast eval",
        help="score a forecaster on every window, and compare it with naive ones",
        description="Score a forecaster on every window of the test part, scaled and in the file's "
        "units, and compare it with repeating the last row and the last season: one table, one JSON "
        "record, a plot.",
        options="forecasting.eval_options:ForecastEvalOptions",
        run="forecasting.evaluation:evaluate_forecaster",
    ),
    OptionsVerb(
        name="forecast predict",
        help="forecast the rows after a file's end, as CSV and plot",
        description="Forecast the rows that follow the last ones of a file, with their times and in the "
        "file's units: a CSV, and a plot that includes the rows before.",
        options="forecasting.eval_options:PredictOptions",
        run="forecasting.prediction:predict",
    ),
    Verb(
        name="forecast plot",
        help="draw evaluations, and forecasts of a test window with the observed values",
        description="Draw evaluations (error at every step ahead) and forecasters (their training, and "
        "their forecasts of one window with the observed values), as PNG and SVG.",
        arguments="cli.forecast:add_plot_flags",
        run="cli.forecast:plot",
    ),
)


def add_plot_flags(parser: Parser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="folder of an evaluation or of a forecaster"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/forecast-plots"),
        metavar="DIR",
        help="folder for the plots (default: runs/forecast-plots)",
    )
    parser.add_argument(
        "--window", type=int, metavar="N", help="which window, from 0 (default: the middle one)"
    )
    parser.add_argument("--part", choices=["train", "valid", "test"], default="test")
    parser.add_argument(
        "--columns", metavar="NAME,...", help="columns to draw (default: the first eight)"
    )
    parser.add_argument(
        "--data", default="", metavar="FILE", help="default: the forecaster's training file"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder with the named data sets"
    )


def plot(parsed: argparse.Namespace) -> None:
    from ..forecasting.data.options import TableOptions
    from ..forecasting.plotting import plot_forecasts

    plot_forecasts(
        parsed.paths,
        parsed.output,
        window=parsed.window,
        part=parsed.part,
        columns=tuple(filter(None, (parsed.columns or "").split(","))),
        table=TableOptions(data=parsed.data, data_dir=parsed.data_dir),
    )
