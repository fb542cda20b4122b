"""Settings of training a language model."""

from dataclasses import dataclass, field
from typing import Any

from ..config import RSA_FIELDS, RecurrenceConfig
from ..runs.settings import build
from ..text.options import TextOptions
from ..training.options import ALIASES, LoopOptions


def for_plain_twin(given: dict[str, Any]) -> dict[str, Any]:
    """Settings (dotted keys) for a model; of one that carries nothing, those that only a state uses are
    left out, so that one file of settings serves both twins."""
    if given.get("recurrence.carry") != "none":
        return given
    used_by_all = ("carry", "window", "overlap", "horizon", "recompute", "memory_budget")
    kept = {f"recurrence.{name}" for name in (*used_by_all, "rsa", *RSA_FIELDS)}
    return {k: v for k, v in given.items() if k in kept or not k.startswith("recurrence.")}


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LoopOptions, TextOptions):
    """The model, and what a step reads."""

    model: str = ""
    """Name or folder of a Hugging Face causal language model, or of a holdover model or run."""
    gguf_file: str | None = None
    """File in the model's folder, for models in the GGUF format."""
    trust_remote_code: bool = False
    """Execute Python code that comes with the model or its tokenizer. Read that code first."""
    from_scratch: bool = False
    """Random weights: of the model only its configuration is used, or of its type (gpt2) the
    default one."""
    shape: dict[str, Any] = field(default_factory=dict)
    """With from_scratch: changes of the configuration, as in n_layer=2,n_embd=64."""
    recurrence: RecurrenceConfig = field(default_factory=RecurrenceConfig)
    windows: int = 20
    """Windows a step reads in every row; back-propagation goes through all of them."""
    rows: int = 8
    """Rows of a batch, each reading its own documents."""
    reset_every: int | None = None
    """Windows after which the state is reset inside a document too; none carries it to its end."""
    freeze_base: bool = False
    """Train only what was added."""
    check_compiled: bool = True
    """With compile: compare its gradients with those of the step as it was written, before the first
    step and behind steps 100, 1,000, 10,000, ..., and refuse wrong ones."""
    replay: bool = False
    """On a GPU: record the kernels of a step (a CUDA graph) and replay them, for models so small that
    Python is slower than the GPU; keeps the memory of a step (of two, where documents end) also while
    nothing is trained."""
    validation: str | None = None
    """Text to validate on, as for data; none takes the corpus's own split or the end of the text."""
    validation_tokens: int | None = None
    """Read no more than so many tokens of each validation document."""

    def __post_init__(self) -> None:
        LoopOptions.__post_init__(self)
        TextOptions.__post_init__(self)
        for name, hint in (("model", "gpt2"), ("data", "novel.txt")):
            if not getattr(self, name):
                raise ValueError(f"Say which {name}: for example --{name} {hint}.")
        for name in ("windows", "rows", "reset_every", "validation_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if self.shape and not self.from_scratch:
            raise ValueError("shape changes random models: give --from-scratch too.")

    @classmethod
    def of(cls, **settings: Any) -> "TrainOptions":
        """From values as a settings file has them: paths as text, window and overlap, sections."""
        return build(cls, settings, aliases=ALIASES)
