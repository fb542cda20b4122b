"""Training: one loop for every task, checkpoints that continue exactly, logs."""

from .options import LoopOptions, TrainOptions
from .run import train

__all__ = ["LoopOptions", "TrainOptions", "train"]
