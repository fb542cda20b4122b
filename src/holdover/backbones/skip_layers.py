"""Running a part of a stock model's layers.

* Layers below the insert layer do not depend on the state: they can run once for all windows, and each
  window then starts from their output.
* A classifier over many windows needs the model's own norm, pooler and head, but no layer.

Every layer gets an instance-level `forward` when hooks are attached. It calls the class's own unless
the open window's call skips the layer; removing it uncovers the class's forward.
"""

from typing import Any

from torch import nn

from .attention import argument_names, by_name


class SkippableForward:
    """The forward of one layer. An object, not a closure: a deep copy of a model gets its own."""

    def __init__(self, hooks: Any, layer: nn.Module, index: int) -> None:
        self.hooks = hooks
        self.layer = layer
        self.index = index
        self.names = argument_names(layer)
        # Another library may have given the layer a forward of its own.
        self.replaced = layer.__dict__.get("forward")
        layer.forward = self

    def remove(self) -> None:
        if self.layer.__dict__.get("forward") is not self:
            # Another library has wrapped this forward: it stays inside, and does nothing.
            return
        del self.layer.__dict__["forward"]
        if self.replaced is not None:
            self.layer.forward = self.replaced

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.hooks.call
        if call is None or not call.skips(self.index):
            if self.replaced is not None:
                return self.replaced(*args, **kwargs)
            return type(self.layer).forward(self.layer, *args, **kwargs)
        named = by_name(self.names, args, kwargs)
        start, stop = call.skipped
        call.layers_skipped += 1
        if self.index == start:
            call.skip_input = self.hooks.layer_input(named)
        stored = call.skip_output if self.index == stop - 1 else None
        return self.hooks.pass_through(named, stored)
