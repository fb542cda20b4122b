"""The command line: one file a verb."""

from .entry import main

__all__ = ["main"]
