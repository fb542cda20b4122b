"""Texts of any length, written token by token through windows."""

from .session import Session
from .session_file import read_session
from .writer import Sampler, Writer

__all__ = ["Sampler", "Session", "Writer", "read_session"]
