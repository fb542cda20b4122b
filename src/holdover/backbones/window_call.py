"""WindowCall: what one forward pass of one window reads and leaves behind.

Hooks stay on the model's modules; the call they work for is looked up in a context variable, so that
several threads can read different windows with one model. torch.compile traces one call at a time and
does not follow context variables: while it traces, the call is an attribute of the hooks, which no
eager forward pass reads.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..carries.base import CarryInputs, StepTrace
from ..windows import Window

Observer = Callable[[int, Tensor], None]


@dataclass(eq=False)
class WindowCall:
    """Made by whoever runs the model on a window; `Hooks.open` and `Hooks.close` set it in place."""

    window: Window
    inputs: CarryInputs
    trace: StepTrace
    hooks: Any = None
    # Sees the layers' outputs in place of the kind of state.
    observe: Observer | None = None
    # Positions of the window that were read before and are in a cache.
    past: int = 0
    # Keep the keys and values of the carried rows in the cache (generation/row_kv_cache.py).
    keeps_row_keys: bool = False
    # Layers start..stop (from 0) do not run; the last of them returns `skip_output`, or its input.
    skipped: tuple[int, int] = (0, 0)
    skip_output: Tensor | None = None  # [B, T, k]
    # Left behind by the forward pass.
    layers_skipped: int = 0
    skip_input: Tensor | None = None  # [B, T, k] input of the first skipped layer
    last_layer: Tensor | None = None  # [B, T, k] output of the last layer, before the final norm
    head_input: Tensor | None = None  # [B, T, k] input of the vocabulary projection
    given_mask: Tensor | None = None  # [B, positions] as the base was given it
    finished: bool = False  # the hooks saw the whole forward pass

    def check_skipped(self) -> None:
        """A layer whose forward another library took away ran although it was to be skipped."""
        start, stop = self.skipped
        if self.layers_skipped != stop - start:
            raise RuntimeError(
                "Another library replaced the forward of a layer after holdover attached to it: call "
                "holdover.remove_recurrence(model) and add_recurrence again."
            )

    def skips(self, layer: int) -> bool:
        return self.skipped[0] <= layer < self.skipped[1]


CURRENT_CALL: ContextVar[WindowCall | None] = ContextVar("holdover_window_call", default=None)
