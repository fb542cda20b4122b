"""Settings of the demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..bundled import PLAIN, RECURRENT
from ..runs.settings import Settings

STAGES = ("read", "state", "write", "learn", "page")


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Settings):
    """What to show, and for how long."""

    text: Path | None = None
    """Your own text to train on for a minute; none takes the bundled novel."""
    output: Path = Path("runs/demo")
    """Folder for the page, the record and the trained model."""
    stages: tuple[str, ...] = STAGES
    """Stages to run: read, state, write, learn, page. The page needs read and state."""
    minutes: float = 1.0
    """Minutes of training."""
    max_steps: int | None = None
    """Stop the training after this many steps, however long they take."""
    new_tokens: int = 2000
    """Number of tokens to write."""
    novel_tokens: int | None = None
    """Read at most this many tokens of the novel."""
    plain: str = PLAIN
    """Model without a state."""
    recurrent: str = RECURRENT
    """Model that carries a state."""
    seed: int = 0
    """Seed for everything drawn at random."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""

    def __post_init__(self) -> None:
        for stage in self.stages:
            if stage not in STAGES:
                raise ValueError(f"stages={stage!r} is not one of {', '.join(STAGES)}.")
        if not self.stages:
            raise ValueError(f"stages: give at least one of {', '.join(STAGES)}.")
        if "page" in self.stages and not {"read", "state"} <= set(self.stages):
            raise ValueError("--stages: the page needs read and state, so add them.")
        if not self.minutes > 0:
            raise ValueError(f"minutes={self.minutes} must be greater than 0.")
        self.check_at_least(new_tokens=1, max_steps=1, novel_tokens=1000)
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed} must be a number from 0 to {2**32 - 1}.")
