"""Jobs on a SLURM cluster: sent, kept through time limits and preemptions, followed, listed."""

from .follow import follow
from .records import Submission, find_jobs, read_submissions
from .request import Asked, Request, describe, submit
from .scheduler import cancel
from .states import ENDED, Standing, standings

__all__ = [
    "ENDED",
    "Asked",
    "Request",
    "Standing",
    "Submission",
    "cancel",
    "describe",
    "find_jobs",
    "follow",
    "read_submissions",
    "standings",
    "submit",
]
