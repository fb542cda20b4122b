"""Settings of an evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..text.options import TextOptions


@dataclass(frozen=True, kw_only=True)
class EvalOptions(TextOptions):
    """The model, the measurements, and where they are written."""

    model: str = ""
    """Name or folder of a language model, of a holdover model, or of a run (its best checkpoint)."""
    gguf_file: str | None = None
    """File in the model's folder, for models in the GGUF format."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the model or its tokenizer. Read that code first."""
    split: Literal["test", "valid", "train", "all"] = "test"
    """Split of the corpus. A text without splits is read completely (test, all) or only its held-out
    end (valid). If the model was trained on that text, test is the held-out end too."""
    window: int | None = None
    """Tokens in a window; none takes the length used in training (stock models: 300)."""
    overlap: tuple[int, ...] = ()
    """Overlaps, one row of the table each, as in 0,5,10,30,50; none takes the trained one."""
    memory_length: int | None = None
    """Positions that models with a memory of their own keep (recurrence memory: XLNet, Transformer-XL);
    none keeps as many as in training."""
    carry: int | Literal["document"] = "document"
    """How far the state is carried: through each document, or for this many windows."""
    rows: int = 16
    """Documents (or windows of a plain model) in a batch."""
    document_tokens: int | None = None
    """Read at most this many tokens of each document."""
    documents: int | None = None
    """Read at most this many documents."""
    metrics: bool = True
    """Accuracy, precision, recall, F1 and AUC of the next token, in addition to perplexity."""
    classes: int = 1000
    """Number of the most frequent tokens used as classes for those metrics with subword models; byte
    vocabularies always use all of them."""
    diagnose_state: bool = True
    """For recurrent models: read the same windows without the state, with another document's state and
    with less history, and measure how far gradients reach."""
    history: int = 4
    """Largest number of windows of history to try."""
    diagnose_windows: int = 400
    """Windows to draw at random for that diagnosis."""
    timed_windows: int = 240
    """Windows to read two more times, to measure speed and memory."""
    seed: int = 0
    """Seed for the intervals and for drawing windows."""
    draws: int = 2000
    """Bootstrap draws for each interval."""
    bf16: bool = False
    """Mixed precision: bfloat16 products."""
    compile: bool = False
    """Compile the step."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to evaluate on."""
    output: Path = Path("runs/eval")
    """Folder for the record (eval.json) and the plots."""
    plots: bool = True
    """Write plots next to the record, as PNG and SVG."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_given(model="runs/train", data="novel.txt")
        self.check_at_least(window=1, rows=1, document_tokens=2, documents=1, classes=2)
        self.check_at_least(memory_length=1, timed_windows=1, history=1, diagnose_windows=2)
        self.check_at_least(draws=100, seed=0)
        if self.carry != "document" and self.carry < 1:
            raise ValueError(f"carry={self.carry} must be the word document or at least 1 window.")
        if any(overlap < 0 for overlap in self.overlap):
            raise ValueError(f"overlap={self.overlap} must not contain negative numbers.")
