"""Experiments: a question, the runs that answer it, one record a run, and what is shown of them."""

from .definition import (
    SCALES,
    Answer,
    Cell,
    Claim,
    Expectation,
    Experiment,
    Figure,
    Layout,
    Published,
    Run,
    Samples,
    Series,
    Table,
    Threats,
    Value,
)
from .estimates import Estimate, estimate, outcome, verdict
from .measures import bounded, in_units, of_evaluation, paired_difference, ratio
from .options import RunOptions
from .records import Records, read_records
from .runner import plan_runs, run_experiment, run_experiments
from .work import Work, last_checkpoint, log_of, resident_memory, training_memory

__all__ = [
    "SCALES",
    "Answer",
    "Cell",
    "Claim",
    "Estimate",
    "Expectation",
    "Experiment",
    "Figure",
    "Layout",
    "Published",
    "Records",
    "Run",
    "RunOptions",
    "Samples",
    "Series",
    "Table",
    "Threats",
    "Value",
    "Work",
    "bounded",
    "estimate",
    "in_units",
    "last_checkpoint",
    "log_of",
    "of_evaluation",
    "outcome",
    "paired_difference",
    "plan_runs",
    "ratio",
    "read_records",
    "resident_memory",
    "run_experiment",
    "run_experiments",
    "training_memory",
    "verdict",
]
