"""Forecasters that were trained: scored beside naive ones, asked for the future, drawn.

train_forecaster(ForecastOptions.of(model="dlinear", data="power.csv"))
record = evaluate_forecaster(ForecastEvalOptions.of(model="runs/forecast"))
prediction = predict(PredictOptions.of(model="runs/forecast", data="power.csv"))
"""

from ..train import ForecastOptions, train_forecaster
from ..train.forecaster_folder import SavedForecaster, open_forecaster
from .evaluation import evaluate_forecaster
from .options import ForecastEvalOptions, PredictOptions
from .plotting import plot_forecasts
from .prediction import Prediction, forecast_beyond, predict

__all__ = [
    "ForecastEvalOptions",
    "ForecastOptions",
    "PredictOptions",
    "Prediction",
    "SavedForecaster",
    "evaluate_forecaster",
    "forecast_beyond",
    "open_forecaster",
    "plot_forecasts",
    "predict",
    "train_forecaster",
]
