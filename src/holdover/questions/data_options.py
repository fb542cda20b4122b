"""Which questions to read: the settings that training and evaluation share."""

from dataclasses import dataclass
from pathlib import Path

from ..runs.settings import Settings


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(Settings):
    """The questions, and the texts that answer them."""

    data: str = ""
    """File of questions in HotpotQA's format (a JSON list, or one object per line; also .xz, .gz), or
    the name hotpotqa."""
    data_dir: Path | None = None
    """Folder with hotpotqa; defaults to the environment variable HOLDOVER_DATA."""
    questions: int | None = None
    """Read only this many questions of each file, from its beginning; none reads all."""

    def __post_init__(self) -> None:
        self.check_at_least(questions=1)
