"""The demonstration: what `holdover demo` does."""

from .options import DemoOptions
from .run import run

__all__ = ["DemoOptions", "run"]
