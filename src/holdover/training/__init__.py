"""The one training loop: setup, checkpoints that continue exactly, optimizer, logs."""

from ..lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".options": "LoopOptions",
    },
)
