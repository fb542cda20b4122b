"""A compiled step is believed once it has said what the step says as it was written.

Compilers err: on an H200 every second process that compiled a plain model had losses half a nat too high
(docs/training.md).
"""

import torch

from ..recurrent.model import RecurrentModel
from ..text.tokens import Tokens
from .scoring import first_windows, score

# Windows that are read in both ways.
CHECKED_WINDOWS = 64
# Nats a token: more than bfloat16 makes of another order of sums, less than anything worth knowing.
TOLERANCE = 0.01


def check_compiled(
    model: RecurrentModel, tokens: Tokens, rows: int, reset_every: int | None, device: torch.device
) -> None:
    """Read the beginning of a text compiled and uncompiled; refuse to go on where they disagree."""
    part = first_windows(tokens, rows, CHECKED_WINDOWS, model.settings.window)
    if part.scored is not None and not part.scored.any():
        return
    found = score(model, part, rows=rows, device=device, reset_every=reset_every)
    with model.uncompiled():
        expected = score(model, part, rows=rows, device=device, reset_every=reset_every)
    if not abs(found.mean() - expected.mean()) < TOLERANCE:
        raise FloatingPointError(
            f"The compiled step is wrong: on the first {found.windows} windows its loss is "
            f"{found.mean():.4f} nats a token, and {expected.mean():.4f} as the step was written. "
            "Leave --compile out."
        )
