"""Settings of evaluating a reader and of asking it something."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..runs.settings import build
from .data_options import QuestionOptions


@dataclass(frozen=True, kw_only=True)
class QAEvalOptions(QuestionOptions):
    """What is scored, and beside what."""

    model: str = ""
    """Folder of a reader, or of the run that trained it. Without data it is scored on what its training
    kept apart: another split, the file it validated on, or the end that was held out."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the tokenizer. Read that code first."""
    against: tuple[str, ...] = ()
    """Folders of other readers that answer the same questions."""
    split: Literal["train", "valid", "test"] = "test"
    """Split of hotpotqa; files have none."""
    rows: int = 8
    """Questions of a batch."""
    longest_answer: int = 30
    """Tokens that an answer may have."""
    diagnose_state: bool = True
    """Read the questions again without the state and with another question's."""
    draws: int = 2000
    """Draws behind each interval."""
    seed: int = 0
    """Of these draws, and of whose state is given to whom."""
    bf16: bool = False
    """Mixed precision: bfloat16 products."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to read."""
    output: Path = Path("runs/qa-eval")
    """Folder for the record and the answers."""

    def __post_init__(self) -> None:
        QuestionOptions.__post_init__(self)
        check_model(self.model)
        for name in ("rows", "longest_answer", "draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")

    @classmethod
    def of(cls, **settings: Any) -> "QAEvalOptions":
        return build(cls, settings)


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """What is asked, and of which text."""

    model: str = ""
    """Folder of a reader, or of the run that trained it."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the tokenizer. Read that code first."""
    question: str = ""
    """The question."""
    context: str = "-"
    """Text file that answers it, or - for what is typed or piped in."""
    longest_answer: int = 30
    """Tokens that the answer may have."""
    around: int = 150
    """Characters of the text that are shown on either side of the answer."""
    json: bool = False
    """Print one JSON object in place of lines to read."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to read."""

    def __post_init__(self) -> None:
        check_model(self.model)
        if not self.question.strip():
            raise ValueError('Ask something: for example --question "Who wrote it?".')
        for name, least in (("longest_answer", 1), ("around", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}.")

    @classmethod
    def of(cls, **settings: Any) -> "AskOptions":
        return build(cls, settings)


def check_model(model: str) -> None:
    if not model:
        raise ValueError("Say which model: for example --model runs/qa.")
