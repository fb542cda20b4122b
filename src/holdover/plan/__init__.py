"""What a training will take, before it is begun: FLOPs, memory, talk between GPUs, time."""

from .check import calibration, check, markdown
from .hardware import HARDWARE, Hardware
from .options import ALIASES, PlanOptions
from .predict import Plan, plan
from .show import show_plan, table_rows

__all__ = [
    "ALIASES",
    "HARDWARE",
    "Hardware",
    "Plan",
    "PlanOptions",
    "calibration",
    "check",
    "markdown",
    "plan",
    "show_plan",
    "table_rows",
]
