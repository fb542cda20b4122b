"""holdover gives pretrained transformers a memory: a small state carried from window to window."""

import warnings
from typing import Any

from . import deprecated_modules
from .lazy_exports import lazy_exports

__version__ = "0.1.0"

_public_name, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".backbones.registry": "BACKBONES",
        ".carries.base": "Carry CarryInputs StepTrace",
        ".carries.registry": "CARRIES register_carry",
        ".config": "RecurrenceConfig",
        ".evaluation.token_lens": "lens",
        ".generation.session": "Session",
        ".recurrent.attach": "add_recurrence remove_recurrence",
        ".recurrent.model": "RecurrentModel",
        ".recurrent.output": "RecurrentOutput",
        ".recurrent.saving": "RecurrentModelConfig",
        ".recurrent.step": "OutputRequest",
        ".state": "State",
        ".unrolling": "Recompute unroll",
        ".windows": "Window cut",
    },
)


def __getattr__(name: str) -> Any:
    if name == "Wanted":
        warnings.warn(
            "holdover.Wanted is now holdover.OutputRequest; the old name goes away in the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        name = "OutputRequest"
    return _public_name(name)


deprecated_modules.install()
