"""Settings of training a reader; the defaults are those of Yoshida, Ettinger and Gimpel for HotpotQA."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..config import RecurrenceConfig
from ..runs.settings import build
from ..training.options import ALIASES, LoopOptions
from .data_options import QuestionOptions


@dataclass(frozen=True, kw_only=True, init=False)
class ReaderRecurrence(RecurrenceConfig):
    """What one window of a context hands to the next.

    The defaults are the published ones: the mean of the last layer, one hidden layer of 768, read by
    layer 2. Other kinds of state take the general defaults of what they do not share.
    """

    window: int = 512
    """Tokens a window holds, the question and what separates it among them; of a model with fewer
    positions than 512 as many as it has."""
    overlap: int = 0
    """Tokens of the context that the next window reads again."""
    mix_layers: Literal["all", "last"] = "last"
    """Layers whose outputs are pooled: a learned mix of all, or the last alone."""
    map_hidden: tuple[int, ...] = (768,)
    """Hidden sizes of the feed-forward map between windows; () is one linear map."""


@dataclass(frozen=True, kw_only=True)
class QAOptions(LoopOptions, QuestionOptions):
    """The reader, and what a step reads."""

    model: str = ""
    """Name or folder of a pretrained encoder (BERT, RoBERTa, MPNet, ...) with its tokenizer."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the model or its tokenizer. Read that code first."""
    recurrence: ReaderRecurrence = field(default_factory=ReaderRecurrence)
    rows: int = 8
    """Questions of a batch; a step goes through all windows of their contexts, and back."""
    freeze_base: bool = False
    """Train only what was added: the state and the heads."""
    validation: str | None = None
    """File of questions to validate on; none takes hotpotqa's own, or the end of the file."""
    held_out: float = 0.1
    """Share of a file, its end, that is kept for validation where no other file is named."""
    longest_answer: int = 30
    """Tokens that an answer may have in validations."""
    best_by: Literal["f1", "loss"] = "f1"
    """What makes a checkpoint the best: F1 of the validation's answers, or their loss."""
    output: Path = Path("runs/qa")
    """Folder of the run: checkpoints, log.jsonl, settings."""
    learning_rate: float = 2e-5
    """Of the pretrained weights."""
    added_learning_rate: float = 2e-5
    """Of the weights that were added: the state's and the heads'."""
    epochs: int = 4
    """Times all questions are read."""
    validate_every: int | None = None
    """Tokens between validations; none validates at the end of every epoch."""
    seed: int = 0
    """Of new weights, dropout and the order of questions."""

    def __post_init__(self) -> None:
        LoopOptions.__post_init__(self)
        QuestionOptions.__post_init__(self)
        for name, hint in (("model", "roberta-base"), ("data", "hotpotqa")):
            if not getattr(self, name):
                raise ValueError(f"Say which {name}: for example --{name} {hint}.")
        for name in ("rows", "longest_answer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out={self.held_out} must be a share between 0 and 1.")
        if self.compile:
            raise ValueError("compile is for language models: leave it out.")

    @classmethod
    def of(cls, **settings: Any) -> "QAOptions":
        """From values as a settings file has them."""
        return build(cls, settings, aliases=ALIASES)
