"""Scores, intervals, cost, and whether a model uses its state."""

from ..lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".token_lens": "Lens lens",
        ".scoring": "Scores score",
    },
)
