"""Predicts the cost of a training run before it starts: FLOPs, memory, communication, time."""

from ..lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".prediction_checks": "calibration check markdown",
        ".hardware": "HARDWARE Hardware",
        ".options": "ALIASES PlanOptions",
        ".predict": "Plan plan",
        ".show": "show_plan table_rows",
    },
)
