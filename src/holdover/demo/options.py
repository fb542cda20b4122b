"""Settings of the demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..bundled import PLAIN, RECURRENT
from ..runs.settings import build

STAGES = ("read", "state", "write", "learn", "page")


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What to show, and how much time to spend."""

    text: Path | None = None
    """Text of your own to train on for a minute (default: the bundled novel)."""
    output: Path = Path("runs/demo")
    """Folder for the page, the record and the trained model."""
    stages: tuple[str, ...] = STAGES
    """Stages to run: read, state, write, learn, page. The page needs read and state."""
    minutes: float = 1.0
    """Minutes of training."""
    max_steps: int | None = None
    """End the training after this number of steps, even if it takes longer."""
    new_tokens: int = 2000
    """Number of tokens to generate."""
    novel_tokens: int | None = None
    """Read at most this number of tokens of the novel."""
    plain: str = PLAIN
    """Model without a state."""
    recurrent: str = RECURRENT
    """Model that carries a state."""
    seed: int = 0
    """Seed for training and sampling."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        for stage in self.stages:
            if stage not in STAGES:
                raise ValueError(f"--stages: {stage!r} is none of {', '.join(STAGES)}.")
        if not self.stages:
            raise ValueError(f"--stages is empty: give some of {', '.join(STAGES)}.")
        if "page" in self.stages and not {"read", "state"} <= set(self.stages):
            raise ValueError("--stages: the page needs read and state, so add them.")
        if not self.minutes > 0:
            raise ValueError(f"--minutes {self.minutes} must be greater than 0.")
        for flag, value in (("--new-tokens", self.new_tokens), ("--max-steps", self.max_steps)):
            if value is not None and value < 1:
                raise ValueError(f"{flag} {value} must be at least 1.")
        if self.novel_tokens is not None and self.novel_tokens < 1000:
            raise ValueError(f"--novel-tokens {self.novel_tokens} must be at least 1000.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"--seed {self.seed} must be a number from 0 to {2**32 - 1}.")

    @classmethod
    def of(cls, **settings: Any) -> "DemoOptions":
        return build(cls, settings)
