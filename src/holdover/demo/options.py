"""Settings of the demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..bundled import PLAIN, RECURRENT
from ..runs.settings import build

STAGES = ("read", "state", "write", "learn", "page")


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """What is shown, and for how long."""

    text: Path | None = None
    """Text of your own to train on for a minute; none takes the bundled novel."""
    output: Path = Path("runs/demo")
    """Folder for the page, the record and the model that is trained."""
    stages: tuple[str, ...] = STAGES
    """Which of read, state, write, learn and page to do; the page needs read and state."""
    minutes: float = 1.0
    """How long the training takes."""
    max_steps: int | None = None
    """End the training after so many steps, however long they take."""
    new_tokens: int = 2000
    """How many tokens are written."""
    novel_tokens: int | None = None
    """Read no more than so many tokens of the novel."""
    plain: str = PLAIN
    """Model that forgets."""
    recurrent: str = RECURRENT
    """Model that carries a state."""
    seed: int = 0
    """Of what is drawn at random."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""

    def __post_init__(self) -> None:
        for stage in self.stages:
            if stage not in STAGES:
                raise ValueError(f"stages: {stage!r} is none of {', '.join(STAGES)}.")
        if not self.stages:
            raise ValueError(f"stages is empty: give some of {', '.join(STAGES)}.")
        if "page" in self.stages and not {"read", "state"} <= set(self.stages):
            raise ValueError("stages: the page shows read and state, so ask for those too.")
        if not self.minutes > 0:
            raise ValueError(f"minutes={self.minutes} must be greater than 0.")
        for name in ("new_tokens", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if self.novel_tokens is not None and self.novel_tokens < 1000:
            raise ValueError(f"novel_tokens={self.novel_tokens} must be at least 1000.")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed} must be a number from 0 to {2**32 - 1}.")

    @classmethod
    def of(cls, **settings: Any) -> "DemoOptions":
        return build(cls, settings)
