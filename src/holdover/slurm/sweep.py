"""Sweeps: several values of some settings, and the words of each combination."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Variation:
    """One combination: KEY=VALUE words, and what its folder is called."""

    words: tuple[str, ...]

    @property
    def name(self) -> str:
        return re.sub(r"[^\w.+=-]+", "-", "_".join(self.words))


def variations(sweeps: Sequence[str]) -> list[Variation]:
    """All combinations of what KEY=VALUE,VALUE words say; of none, a single one without words."""
    chosen: dict[str, list[str]] = {}
    for sweep in sweeps:
        key, _, listed = sweep.partition("=")
        # Values that hold commas themselves are told apart by semicolons.
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
    found = [
        Variation(tuple(f"{key}={value}" for key, value in zip(chosen, values, strict=True)))
        for values in combinations
    ]
    if len({one.name for one in found}) < len(found):
        raise ValueError(
            "--sweep: two combinations would have one folder, since their values differ only in signs "
            "that no folder is named with: rename the values, or submit them separately."
        )
    return found
