"""Training: one loop for every task, checkpoints that continue exactly, logs."""

from .forecast_options import ForecastOptions
from .forecast_run import train_forecaster
from .options import LoopOptions, TrainOptions
from .qa_options import QAOptions
from .qa_run import train_reader
from .run import train

__all__ = [
    "ForecastOptions",
    "LoopOptions",
    "QAOptions",
    "TrainOptions",
    "train",
    "train_forecaster",
    "train_reader",
]
