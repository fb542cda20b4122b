"""Training: one loop for every task, checkpoints that continue exactly, logs."""

from .forecast_options import ForecastOptions
from .forecast_run import train_forecaster
from .options import LoopOptions, TrainOptions
from .run import train

__all__ = ["ForecastOptions", "LoopOptions", "TrainOptions", "train", "train_forecaster"]
