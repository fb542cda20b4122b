"""Sweeps: all combinations of several values of some settings."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Variation:
    """One combination: KEY=VALUE words, and the name of its folder."""

    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return re.sub(r"[^\w.+=-]+", "-", "_".join(self.words))


def variations(sweeps: Sequence[str]) -> list[Variation]:
    """All combinations of KEY=VALUE,VALUE words; without any, a single empty one."""
    chosen: dict[str, list[str]] = {}
    for sweep in sweeps:
        key, _, listed = sweep.partition("=")
        # Semicolons separate values that contain commas.
        values = [value for value in listed.split(";" if ";" in listed else ",") if value]
        if not key or not values:
            raise ValueError(
                f"--sweep {sweep!r} must name a setting and its values: write for example lr=1e-4,3e-4."
            )
        if key.replace("-", "_") == "output":
            raise ValueError(
                "--sweep output: every combination has its own folder inside --output; leave it out."
            )
        if key in chosen:
            raise ValueError(f"--sweep {key} was given twice: list all its values in one.")
        if len(set(values)) < len(values):
            raise ValueError(f"--sweep {sweep!r} lists a value twice: list each once.")
        chosen[key] = values
    combinations = itertools.product(*chosen.values())
    results = [
        Variation(tuple(f"{key}={value}" for key, value in zip(chosen, values, strict=True)))
        for values in combinations
    ]
    if len({result.name for result in results}) < len(results):
        raise ValueError(
            "--sweep: two combinations would have the same folder, because their values differ only in "
            "characters that folder names cannot contain: submit them separately."
        )
    return results
