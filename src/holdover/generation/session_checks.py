"""Checks the arguments of session calls, before the session does anything."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

ERRORS = ("strict", "replace")


def check_exists(path: Path | None) -> None:
    """Refuse a text file that does not exist."""
    if path is not None and not path.is_file():
        raise FileNotFoundError(f"There is no text file at {path}.")


def check_errors(errors: Any) -> None:
    if errors not in ERRORS:
        raise ValueError(
            f'errors={errors!r} is not valid: give "strict" to refuse bytes that are not UTF-8, or '
            '"replace" to use the replacement character.'
        )


def checked_seed(seed: Any) -> int:
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2**63 - 1.")
    return int(seed)


def checked_tokens(tokens: Any) -> int:
    if not isinstance(tokens, int | np.integer) or tokens < 0:
        raise ValueError(
            f"{tokens!r} is not a number of tokens to write: give a whole number of at least 0."
        )
    return int(tokens)


def checked_stops(stop: Any) -> tuple[str, ...]:
    """One stop text or several, as a tuple."""
    stops = (stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop)
    for text in stops:
        if not isinstance(text, str):
            raise TypeError(
                f"stop={stop!r} must be a text after which to stop: give a str, or several of them."
            )
    if not all(stops):
        raise ValueError(
            "stop contains an empty text, which would end writing at once: leave it out."
        )
    return stops


def check_not_training(model: Any) -> None:
    if model.training:
        raise ValueError(
            "The model is in training mode, where dropout would change what it reads and writes: call "
            "model.eval() first."
        )
