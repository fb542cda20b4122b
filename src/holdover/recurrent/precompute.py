"""The layers below the insert layer do not depend on the state: run them once for all windows.

Only without recompute, since their outputs are kept for all windows at once, and only where it is
faster: it makes few large products of many small ones, and saves nothing else.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..windows import Window

# Runs those layers: their output, and what they add to the state.
LowerLayers = Callable[[Window], tuple[Tensor, Tensor | None]]
# Windows of fewer tokens than this leave a GPU waiting for its next product.
BATCHED_BELOW = 4096


def batching_pays(windows: list[Window], choice: str) -> bool:
    if len(windows) == 1:
        return False
    if choice != "auto":
        return choice == "batched"
    ids = windows[0].input_ids
    return ids.is_cuda and ids.numel() < BATCHED_BELOW


def precomputed(windows: list[Window], run: LowerLayers) -> list[Window]:
    """The windows with the state-independent layers run: a step then starts after them."""
    by_shape: dict[torch.Size, list[int]] = {}
    for number, window in enumerate(windows):
        by_shape.setdefault(window.input_ids.shape, []).append(number)
    done = list(windows)
    for numbers in by_shape.values():
        together = _together([windows[number] for number in numbers], run)
        for number, window in zip(numbers, together, strict=True):
            done[number] = window
    return done


def _together(windows: list[Window], run: LowerLayers) -> list[Window]:
    types = [window.token_type_ids for window in windows if window.token_type_ids is not None]
    masks = None
    if any(window.mask is not None for window in windows):
        # Windows next to a padded one get a mask too: without one they would be another form for a
        # compiled step.
        masks = [
            torch.ones_like(window.input_ids, dtype=torch.bool)
            if window.mask is None
            else window.mask
            for window in windows
        ]
    hidden, mix = run(
        Window(
            input_ids=torch.cat([window.input_ids for window in windows]),
            token_type_ids=torch.cat(types) if types else None,
            mask=None if masks is None else torch.cat(masks),
        )
    )
    rows = windows[0].input_ids.shape[0]
    mixes = [None] * len(windows) if mix is None else mix.split(rows)
    return [
        replace(window, lower=part, lower_mix=of_mix)
        for window, part, of_mix in zip(windows, hidden.split(rows), mixes, strict=True)
    ]
