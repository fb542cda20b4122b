"""Which questions are read: the settings that training and evaluation share."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """The questions, and the texts that answer them."""

    data: str = ""
    """File of questions in HotpotQA's format (a JSON list, or one object a line; also .xz, .gz), or the
    name hotpotqa."""
    data_dir: Path | None = None
    """Folder that holds hotpotqa; without it the environment's HOLDOVER_DATA."""
    questions: int | None = None
    """Read no more than so many questions of each file, the first; none reads all."""

    def __post_init__(self) -> None:
        if self.questions is not None and self.questions < 1:
            raise ValueError(f"questions={self.questions} must be at least 1.")
