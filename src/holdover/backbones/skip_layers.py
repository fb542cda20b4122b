"""Running a part of a stock model's layers.

* Below the insert layer nothing depends on the state: those layers can run once for all windows, and
  each window then starts from what they made.
* A classifier over many windows needs the model's own norm, pooler and head, but no layer.

Layers are skipped by an instance-level `forward` for as long as a `with` lasts, then uncovered.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from .attention import argument_names, by_name


class SkipLayers:
    """Skips layers of a model; what the last skipped one returns may be given."""

    def __init__(self, hooks: Any) -> None:
        self.hooks = hooks
        self.stored: Tensor | None = None  # [B, T, k] output of the last skipped layer
        self.reached: Tensor | None = None  # [B, T, k] input of the first skipped layer
        self._range = (0, 0)
        # Kept from call to call: compiled code recognises them by identity.
        self._forwards: dict[tuple[int, int, int], SkippedForward] = {}

    def skips(self, index: int) -> bool:
        return self._range[0] <= index < self._range[1]

    @contextmanager
    def skipped(self, start: int, stop: int) -> Iterator[None]:
        """Skip the layers start..stop (from 0)."""
        layers = self.hooks.layers[start:stop]
        self._range = (start, stop)
        for index in range(start, stop):
            self.hooks.layers[index].forward = self._forward(index, start, stop)
        try:
            yield
        finally:
            for layer in layers:
                del layer.__dict__["forward"]
            self._range = (0, 0)
            self.stored = self.reached = None

    def _forward(self, index: int, start: int, stop: int) -> "SkippedForward":
        key = (index, start, stop)
        if key not in self._forwards:
            names = argument_names(self.hooks.layers[index])
            self._forwards[key] = SkippedForward(
                self, names, first=index == start, last=index == stop - 1
            )
        return self._forwards[key]


class SkippedForward:
    def __init__(self, skip: SkipLayers, names: tuple[str, ...], first: bool, last: bool) -> None:
        self.skip = skip
        self.names = names
        self.first = first
        self.last = last

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        skip, hooks = self.skip, self.skip.hooks
        named = by_name(self.names, args, kwargs)
        if self.first:
            skip.reached = hooks.layer_input(named)
        return hooks.pass_through(named, skip.stored if self.last else None)
