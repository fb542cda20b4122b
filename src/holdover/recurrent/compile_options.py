"""Options for torch.compile that keep a compiled step's gradients equal to the eager step's."""

from typing import Any


def compiler_options() -> dict[str, Any]:
    """Options for torch's own compiler: backward must use the numbers that forward computed with.

    Fused operations skip the rounding to 16 bits between them, but the tensors saved for backward are
    rounded. The sum of a softmax then belongs to other scores than those its gradient is computed from.
    The error grows with the scores, and such gradients grow without bound (docs/training.md). Newer
    versions of torch round the saved tensors in both passes; older ones need this option.
    """
    # Imported here: it takes seconds, and only compiling needs it.
    from torch._inductor import config

    if hasattr(config, "emulate_precision_casts_on_saved_tensors"):
        return {}
    return {"emulate_precision_casts": True}
