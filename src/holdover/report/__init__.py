"""A report: what the records of experiments say, on one page."""

from .options import ReportOptions
from .write import report

__all__ = ["ReportOptions", "report"]
