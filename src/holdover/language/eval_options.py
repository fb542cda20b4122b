"""Settings of an evaluation."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..runs.settings import build
from ..text.options import TextOptions


@dataclass(frozen=True, kw_only=True)
class EvalOptions(TextOptions):
    """The model, what is measured, where it is written."""

    model: str = ""
    """Name or folder of a language model, of a holdover model, or of a run (its best checkpoint)."""
    gguf_file: str | None = None
    """File in the model's folder, for models in the GGUF format."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the model or its tokenizer. Read that code first."""
    split: Literal["test", "valid", "train", "all"] = "test"
    """Split of the corpus. A text without splits is read whole (test, all), or its held-out end
    (valid); of a text that the model was trained on, test is the held-out end too."""
    window: int | None = None
    """Tokens a window holds; none takes what the model was trained with (stock models: 300)."""
    overlap: tuple[int, ...] = ()
    """Overlaps, one row of the table each, as in 0,5,10,30,50; none takes the trained one."""
    memory_length: int | None = None
    """Positions that models with a memory of their own keep (recurrence memory: XLNet, Transformer-XL);
    none keeps what they were trained with."""
    carry: int | Literal["document"] = "document"
    """How far the state goes: through whole documents, or reset after so many windows."""
    rows: int = 16
    """Documents (or windows of a plain model) that are read side by side."""
    document_tokens: int | None = None
    """Read no more than so many tokens of each document."""
    documents: int | None = None
    """Read no more than so many documents."""
    metrics: bool = True
    """Accuracy, precision, recall, F1 and AUC of the next token, beside perplexity."""
    classes: int = 1000
    """Most frequent tokens over which subword models are measured as classifiers; byte vocabularies
    always are over all of them."""
    diagnose_state: bool = True
    """For recurrent models: the same windows without the state, with another document's, with less
    history, and how far gradients reach."""
    history: int = 4
    """Windows of history that are tried."""
    diagnose_windows: int = 400
    """Windows, drawn at random, that are read for it."""
    timed_windows: int = 240
    """Windows that are read twice more, to see how fast that is and how much memory it takes."""
    seed: int = 0
    """Of the intervals and of the windows that are drawn."""
    draws: int = 2000
    """Of the bootstrap."""
    bf16: bool = False
    """Mixed precision: bfloat16 products."""
    compile: bool = False
    """Compile the step."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to read."""
    output: Path = Path("runs/eval")
    """Folder for the record (eval.json) and the plots."""
    plots: bool = True
    """Write plots beside the record, as PNG and SVG."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, hint in (("model", "runs/train"), ("data", "novel.txt")):
            if not getattr(self, name):
                raise ValueError(f"Say which {name}: for example --{name} {hint}.")
        least = {"window": 1, "rows": 1, "document_tokens": 2, "documents": 1, "classes": 2}
        least |= {
            "memory_length": 1,
            "timed_windows": 1,
            "history": 1,
            "diagnose_windows": 2,
            "draws": 100,
            "seed": 0,
        }
        for name, value in least.items():
            given = getattr(self, name)
            if given is not None and given < value:
                raise ValueError(f"{name}={given} must be at least {value}.")
        if self.carry != "document" and self.carry < 1:
            raise ValueError(f"carry={self.carry} must be the word document or at least 1 window.")
        if any(overlap < 0 for overlap in self.overlap):
            raise ValueError(f"overlap={self.overlap}: an overlap cannot be negative.")

    @classmethod
    def of(cls, **settings: Any) -> "EvalOptions":
        """From values as a settings file has them: paths as text, one overlap or several."""
        return build(cls, settings)
