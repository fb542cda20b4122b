"""Segment memory: the last M inputs of every layer, attended to by the backbone's own memory.

For backbones that take such a memory themselves (XLNet's `mems`). Unlike the stock caching, the
memory is cut per row behind its last token, and carries gradients until the horizon cuts it.
"""

import torch
from torch import Tensor

from ..config import RecurrenceConfig
from .carry import Carry, Reading, Shape, Tensors, Trace


class MemoryCarry(Carry):
    needs_layer_inputs = True
    uses = frozenset({"memory_length"})

    def __init__(self, config: RecurrenceConfig, shape: Shape) -> None:
        super().__init__(config, shape)
        self.length = config.memory_length or config.window

    def read(self, tensors: Tensors | None, present: Tensor | None, batch: int) -> Reading:
        if tensors is None:
            return Reading()
        filled = tensors["filled"]
        if present is not None:
            filled = torch.where(present, filled, torch.zeros_like(filled))
        memory = [tensors[f"layer.{layer}"] for layer in range(self.shape.layers)]
        return Reading(memory=memory, filled=filled)

    def write(self, trace: Trace) -> dict[str, Tensor]:
        assert trace.layer_inputs is not None
        first = trace.layer_inputs[0]
        tokens = torch.as_tensor(trace.tokens, device=first.device).expand(trace.batch)
        filled = torch.zeros_like(tokens)
        if trace.carried is not None:
            filled = trace.carried["filled"]
            if trace.present is not None:
                filled = torch.where(trace.present, filled, torch.zeros_like(filled))
        kept: dict[str, Tensor] = {"filled": (filled + tokens).clamp(max=self.length)}
        for layer, inputs in enumerate(trace.layer_inputs):
            if trace.carried is not None:
                older = trace.carried[f"layer.{layer}"]
            else:
                older = inputs.new_zeros(trace.batch, self.length, inputs.shape[-1])
            both = torch.cat([older, inputs], 1)
            # The M positions that end with the row's last token.
            index = tokens[:, None] + torch.arange(self.length, device=first.device)
            kept[f"layer.{layer}"] = both.gather(1, index[..., None].expand(-1, -1, both.shape[-1]))
        return kept
