"""Evaluation: every target scored once, sums until the last line, intervals, costs, and whether the
state is used."""

from .lens import Lens, lens
from .options import EvalOptions
from .run import evaluate, measure
from .score import Scores, score

__all__ = ["EvalOptions", "Lens", "Scores", "evaluate", "lens", "measure", "score"]
