"""Language modelling: train a model, evaluate it, compare and plot runs."""

from ..lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".eval_options": "EvalOptions",
        ".evaluation": "evaluate measure",
        ".options": "TrainOptions",
        ".training": "train",
    },
)
