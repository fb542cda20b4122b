"""Experiments: a question, its runs, one record per run, and tables made from the records."""

from ..lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".definition": "SCALES Answer Cell Claim Expectation Experiment Figure Layout Published Run "
        "Samples Series Table Threats Value",
        ".estimates": "Estimate estimate outcome verdict",
        ".measures": "bounded in_units of_evaluation paired_difference ratio",
        ".options": "RunOptions",
        ".records": "Records read_records",
        ".runner": "plan_runs run_experiment run_experiments",
        ".run_context": "RunContext last_checkpoint log_of resident_memory training_memory",
    },
)
