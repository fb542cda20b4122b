"""What torch.compile is told, so that a compiled step is the step that was written."""

from typing import Any


def compiler_options() -> dict[str, Any]:
    """Options of torch's own compiler: backward reads the numbers that forward computed with.

    Fused operations leave out roundings to 16 bits between them, but what is saved for backward is
    rounded. A softmax's sum is then of other scores than those its gradient is computed from; the larger
    the scores, the farther apart, and such gradients grow without bound (docs/training.md). Newer
    versions round what is saved in both; older ones can be told to round as the step was written.
    """
    # Imported here: it takes seconds, and only those who compile need it.
    from torch._inductor import config

    if hasattr(config, "emulate_precision_casts_on_saved_tensors"):
        return {}
    return {"emulate_precision_casts": True}
