"""What a session is asked for: refused in a sentence before anything is done for it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

ERRORS = ("strict", "replace")


def check_exists(path: Path | None) -> None:
    """Refuse a text file that is not there."""
    if path is not None and not path.is_file():
        raise FileNotFoundError(f"There is no text file at {path}.")


def check_errors(errors: Any) -> None:
    if errors not in ERRORS:
        raise ValueError(
            f'errors={errors!r} is not known: give "strict" to refuse bytes that are no UTF-8, or '
            '"replace" to go on with the replacement character.'
        )


def checked_seed(seed: Any) -> int:
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2**63 - 1.")
    return int(seed)


def checked_tokens(tokens: Any) -> int:
    if not isinstance(tokens, int | np.integer) or tokens < 0:
        raise ValueError(f"{tokens!r} is no number of tokens: say how many to write.")
    return int(tokens)


def checked_stops(stop: Any) -> tuple[str, ...]:
    """One text or several, as several."""
    stops = (stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop)
    for text in stops:
        if not isinstance(text, str):
            raise TypeError(
                f"stop={stop!r} is no text to stop behind: give a str, or several of them."
            )
    if not all(stops):
        raise ValueError("stop holds an empty text, which would end writing at once.")
    return stops


def check_not_training(model: Any) -> None:
    if model.training:
        raise ValueError(
            "The model is in training mode, where dropout would change what it reads and writes: call "
            "model.eval() first."
        )
