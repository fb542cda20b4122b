"""Evaluation: every target scored once, sums until the last line, intervals, costs, and whether the
state is used."""

from .options import EvalOptions
from .run import evaluate
from .score import Scores, score

__all__ = ["EvalOptions", "Scores", "evaluate", "score"]
