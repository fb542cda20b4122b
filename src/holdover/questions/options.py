"""Settings of training a reader; the defaults are those of Yoshida, Ettinger and Gimpel for HotpotQA."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..config import RecurrenceConfig
from ..training.options import ALIASES, LoopOptions
from .data_options import QuestionOptions


@dataclass(frozen=True, kw_only=True, init=False)
class ReaderRecurrence(RecurrenceConfig):
    """Settings of the state that one window of a context passes to the next.

    The defaults are the published ones: the mean of the last layer, one hidden layer of 768, read by
    layer 2. Settings of other kinds of state keep their general defaults.
    """

    window: int = 512
    """Tokens in a window, including the question and its separators; at most the model's positions."""
    overlap: int = 0
    """Tokens of the context that the next window reads again."""
    mix_layers: Literal["all", "last"] = "last"
    """Layers whose outputs are pooled: a learned mix of all, or the last alone."""
    map_hidden: tuple[int, ...] = (768,)
    """Hidden sizes of the feed-forward map between windows; () is one linear map."""


@dataclass(frozen=True, kw_only=True)
class QAOptions(LoopOptions, QuestionOptions):
    """Settings of the reader, its batches and its training."""

    aliases = ALIASES

    model: str = ""
    """Name or folder of a pretrained encoder (BERT, RoBERTa, MPNet, ...) with its tokenizer."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the model or its tokenizer. Read that code first."""
    recurrence: ReaderRecurrence = field(default_factory=ReaderRecurrence)
    rows: int = 8
    """Questions per batch; a step back-propagates through all windows of their contexts."""
    freeze_base: bool = False
    """Train only the weights that holdover adds: the state's and the heads'."""
    validation: str | None = None
    """File of questions to validate on; none takes hotpotqa's own, or the end of the file."""
    held_out: float = 0.1
    """Share of a file at its end that is kept for validation, unless another file is named."""
    longest_answer: int = 30
    """Largest number of tokens in a predicted answer, during validation."""
    best_by: Literal["f1", "loss"] = "f1"
    """Measure that selects the best checkpoint: F1 or loss of the validation answers."""
    output: Path = Path("runs/qa")
    """Folder of the run: checkpoints, log.jsonl, settings."""
    learning_rate: float = 2e-5
    """Learning rate of the pretrained weights."""
    added_learning_rate: float = 2e-5
    """Learning rate of the weights that holdover adds: the state's and the heads'."""
    epochs: int = 4
    """Passes over the questions."""
    validate_every: int | None = None
    """Tokens between validations; none validates at the end of every epoch."""
    seed: int = 0
    """Seed for new weights, dropout and question order."""

    def __post_init__(self) -> None:
        LoopOptions.__post_init__(self)
        QuestionOptions.__post_init__(self)
        self.check_given(model="roberta-base", data="hotpotqa")
        self.check_at_least(rows=1, longest_answer=1)
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out={self.held_out} must be a share between 0 and 1.")
        if self.compile:
            raise ValueError("compile=True is for language models: leave it out.")
