"""What models of transformers must not do while their kernels are recorded: look at values."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from transformers import PreTrainedModel, masking_utils

# Where they look, and what they are to think: that nothing is recorded, that a row holds one text, that
# a mask which is given hides something, and that there is nothing to warn of.
LOOKS = (
    (masking_utils, "is_tracing", lambda *_: False),
    (masking_utils, "find_packed_sequence_indices", lambda position_ids: None),
    (masking_utils, "fast_all", lambda mask: False),
    (PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *_: None),
)


@contextmanager
def no_value_checks() -> Iterator[None]:
    """Inside, models decide nothing by the values of ids, positions and masks.

    To look at a value waits for the device, which cannot be while kernels are recorded. Transformers
    knows when they are, and then takes other ways than it took when the kernels were tried before:
    here it takes the same. For the time of a recording alone, since it holds for the whole process.
    """
    with ExitStack() as held:
        for place, name, instead in LOOKS:
            # Not every version has all of them.
            if hasattr(place, name):
                held.enter_context(patch.object(place, name, instead))
        yield
