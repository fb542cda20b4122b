"""The verb forecast: train a forecaster of series, score it, ask it for the future, draw it."""

import argparse
from pathlib import Path
from typing import TypeAlias

from ..forecasting.data.options import TableOptions
from ..forecasting.eval_options import ForecastEvalOptions, PredictOptions
from ..forecasting.evaluation import evaluate_forecaster
from ..forecasting.options import ALIASES, ForecastOptions
from ..forecasting.plotting import plot_forecasts
from ..forecasting.prediction import predict
from ..forecasting.training import train_forecaster
from ..runs.settings import add_flags, build, given_settings
from .training import make_trainer

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_forecast(verbs: Verbs) -> None:
    about = "train, score and ask forecasters of time series"
    group = verbs.add_parser("forecast", help=about, description=f"{about.capitalize()}.")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_train(actions)
    _add_eval(actions)
    _add_predict(actions)
    _add_plot(actions)


def _add_train(actions: Verbs) -> None:
    verb = actions.add_parser(
        "train",
        help="train a forecaster on a CSV or a named data set",
        description="Train a forecaster: informer (with rsa=true in its shape RSA-Informer), dlinear, "
        "lstm; repeat and seasonal have nothing to learn and are saved at once. The folder holds the "
        "columns and the scaler beside the weights.",
        allow_abbrev=False,
    )
    make_trainer(verb, ForecastOptions, ALIASES, train_forecaster)


def _add_eval(actions: Verbs) -> None:
    verb = actions.add_parser(
        "eval",
        help="score a forecaster on every window, beside the naive ones",
        description="Score a forecaster on every window of the test part, scaled and in the file's "
        "units, beside repeating the last row and the last season: one table, one JSON record, a plot.",
        allow_abbrev=False,
    )
    add_flags(verb, ForecastEvalOptions)
    verb.set_defaults(
        run=lambda parsed: evaluate_forecaster(eval_options(parsed)), asked=eval_options, verb=verb
    )


def eval_options(parsed: argparse.Namespace) -> ForecastEvalOptions:
    return build(ForecastEvalOptions, given_settings(ForecastEvalOptions, parsed))


def _add_predict(actions: Verbs) -> None:
    verb = actions.add_parser(
        "predict",
        help="forecast what comes behind a file's end, as CSV and plot",
        description="Forecast the rows that follow the last ones of a file, with their times and in the "
        "file's units: a CSV, and a plot with the rows before it.",
        allow_abbrev=False,
    )
    add_flags(verb, PredictOptions)
    verb.set_defaults(
        run=lambda parsed: predict(build(PredictOptions, given_settings(PredictOptions, parsed))),
        verb=verb,
    )


def _add_plot(actions: Verbs) -> None:
    verb = actions.add_parser(
        "plot",
        help="draw evaluations, and forecasts of a test window against what came",
        description="Draw evaluations (error at every step ahead) and forecasters (their training; what "
        "each says of one window, and what came), as PNG and SVG.",
        allow_abbrev=False,
    )
    verb.add_argument(
        "paths", nargs="+", metavar="PATH", help="folder of an evaluation or of a forecaster"
    )
    verb.add_argument(
        "--output",
        type=Path,
        default=Path("runs/forecast-plots"),
        metavar="DIR",
        help="folder for the plots (default: runs/forecast-plots)",
    )
    verb.add_argument(
        "--window", type=int, metavar="N", help="which window, from 0 (default: the middle one)"
    )
    verb.add_argument("--part", choices=["train", "valid", "test"], default="test")
    verb.add_argument(
        "--columns", metavar="NAME,...", help="columns to draw (default: the first eight)"
    )
    verb.add_argument(
        "--data", default="", metavar="FILE", help="default: the file the forecaster was trained on"
    )
    verb.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder that holds the named data sets"
    )
    verb.set_defaults(run=run_plot, verb=verb)


def run_plot(parsed: argparse.Namespace) -> None:
    plot_forecasts(
        parsed.paths,
        parsed.output,
        window=parsed.window,
        part=parsed.part,
        columns=tuple(filter(None, (parsed.columns or "").split(","))),
        table=TableOptions(data=parsed.data, data_dir=parsed.data_dir),
    )
