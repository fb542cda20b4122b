"""Settings of evaluating a reader and of asking it a question."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..runs.settings import Settings
from .data_options import QuestionOptions


@dataclass(frozen=True, kw_only=True)
class QAEvalOptions(QuestionOptions):
    """What to score, and against which other readers."""

    model: str = ""
    """Folder of a reader, or of the run that trained it. Without data it is scored on data held out from
    its training: another split, the file it validated on, or the end of its file."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the tokenizer. Read that code first."""
    against: tuple[str, ...] = ()
    """Folders of other readers that answer the same questions."""
    split: Literal["train", "valid", "test"] = "test"
    """Split of hotpotqa; files have none."""
    rows: int = 8
    """Questions of a batch."""
    longest_answer: int = 30
    """Most tokens of an answer."""
    diagnose_state: bool = True
    """Read the questions again without the state and with another question's state."""
    draws: int = 2000
    """Bootstrap draws for each interval."""
    seed: int = 0
    """Seed for these draws, and for choosing the other question's state."""
    bf16: bool = False
    """Mixed precision: bfloat16 products."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to evaluate on."""
    output: Path = Path("runs/qa-eval")
    """Folder for the record and the answers."""

    def __post_init__(self) -> None:
        QuestionOptions.__post_init__(self)
        self.check_given(model="runs/qa")
        self.check_at_least(rows=1, longest_answer=1, draws=1)


@dataclass(frozen=True, kw_only=True)
class AskOptions(Settings):
    """The question, and the text to search."""

    model: str = ""
    """Folder of a reader, or of the run that trained it."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the tokenizer. Read that code first."""
    question: str = ""
    """The question."""
    context: str = "-"
    """Text file that answers it, or - for standard input."""
    longest_answer: int = 30
    """Most tokens of the answer."""
    around: int = 150
    """Characters of the text to show on either side of the answer."""
    json: bool = False
    """Print one JSON object instead of text."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to run on."""

    def __post_init__(self) -> None:
        self.check_given(model="runs/qa")
        if not self.question.strip():
            raise ValueError('Ask something: for example --question "Who wrote it?".')
        self.check_at_least(longest_answer=1, around=0)
