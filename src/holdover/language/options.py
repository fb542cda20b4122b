"""Settings of training a language model."""

from dataclasses import dataclass, field
from typing import Any

from ..config import RSA_FIELDS, RecurrenceConfig
from ..text.options import TextOptions
from ..training.options import ALIASES, LoopOptions


def for_plain_twin(given: dict[str, Any]) -> dict[str, Any]:
    """Settings (dotted keys) for a model. If it carries nothing, drop those that only a state uses, so
    that one settings file serves a model and its plain twin."""
    if given.get("recurrence.carry") != "none":
        return given
    used_by_all = ("carry", "window", "overlap", "horizon", "recompute", "memory_budget")
    kept = {f"recurrence.{name}" for name in (*used_by_all, "rsa", *RSA_FIELDS)}
    return {k: v for k, v in given.items() if k in kept or not k.startswith("recurrence.")}


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LoopOptions, TextOptions):
    """The model, and what a step reads."""

    aliases = ALIASES

    model: str = ""
    """Model to train: a Hugging Face name or folder, or a holdover model or run."""
    gguf_file: str | None = None
    """File in the model's folder, for models in the GGUF format."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the model or its tokenizer. Read that code first."""
    from_scratch: bool = False
    """Random weights: use only the model's configuration, or the default one of a model type (gpt2)."""
    shape: dict[str, Any] = field(default_factory=dict)
    """With from_scratch: changes to the configuration, as in n_layer=2,n_embd=64."""
    recurrence: RecurrenceConfig = field(default_factory=RecurrenceConfig)
    windows: int = 20
    """Windows a step reads in every row; back-propagation goes through all of them."""
    rows: int = 8
    """Rows of a batch; each reads its own documents."""
    reset_every: int | None = None
    """Windows after which the state is reset inside a document too; none resets it only at the end."""
    freeze_base: bool = False
    """Train only the weights that holdover adds."""
    check_compiled: bool = True
    """With compile: compare the compiled gradients with the eager ones before the first step and after
    steps 100, 1,000, 10,000, ..., and refuse wrong ones."""
    replay: bool = False
    """On a GPU: record the kernels of a step (a CUDA graph) and replay them. Helps models so small that
    Python is slower than the GPU. Holds one step's GPU memory (two at document ends) even when idle."""
    validation: str | None = None
    """Text to validate on, as for data; none takes the corpus's own split or the end of the text."""
    validation_tokens: int | None = None
    """Read at most this many tokens of each validation document."""

    def __post_init__(self) -> None:
        LoopOptions.__post_init__(self)
        TextOptions.__post_init__(self)
        self.check_given(model="gpt2", data="novel.txt")
        self.check_at_least(windows=1, rows=1, reset_every=1, validation_tokens=1)
        if self.shape and not self.from_scratch:
            raise ValueError("shape: only random models can change it; give --from-scratch too.")
