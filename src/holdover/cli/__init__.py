"""The command line: each file declares some verbs, and verb.py says what a verb is."""

from .entry import main

__all__ = ["main"]
