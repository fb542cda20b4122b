"""Segment memory: the last M inputs of every layer, attended to by the backbone's own memory.

For backbones that take such a memory themselves (XLNet's `mems`, Transformer-XL). Unlike stock caching,
the memory is cut per row behind its last token, and carries gradients until the horizon cuts it.
"""

import torch
from torch import Tensor

from .base import Carry, CarryInputs, StepTrace, Tensors, counts


class MemoryCarry(Carry):
    needs_layer_inputs = True
    uses = frozenset({"memory_length"})

    @property
    def length(self) -> int:
        """M, asked anew each time: a model can be read with another memory than it was made with."""
        return self.settings.memory_length or self.settings.window

    def read(self, tensors: Tensors | None, present: Tensor | None, batch: int) -> CarryInputs:
        if tensors is None:
            return CarryInputs()
        memory = [tensors[f"layer.{layer}"] for layer in range(self.shape.layers)]
        return CarryInputs(memory=memory, filled=filled_of(tensors, present))

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        assert trace.layer_inputs is not None
        first = trace.layer_inputs[0]
        tokens = counts(trace.tokens, first.device).expand(trace.batch)
        filled = torch.zeros_like(tokens)
        if trace.carried is not None:
            filled = filled_of(trace.carried, trace.present)
        kept: dict[str, Tensor] = {"filled": (filled + tokens).clamp(max=self.length)}
        for layer, inputs in enumerate(trace.layer_inputs):
            if trace.carried is not None:
                older = trace.carried[f"layer.{layer}"]
            else:
                older = inputs.new_zeros(trace.batch, self.length, inputs.shape[-1])
            kept[f"layer.{layer}"] = self._last(older, inputs, trace.tokens)
        return kept

    def _last(self, older: Tensor, inputs: Tensor, tokens: int | Tensor) -> Tensor:
        """[B, M, k] of older [B, M, k] and inputs [B, T, k] what ends with each row's last token."""
        if isinstance(tokens, int):
            return torch.cat([older[:, tokens:], inputs[:, -self.length :]], 1)
        both = torch.cat([older, inputs], 1)
        index = tokens[:, None] + torch.arange(self.length, device=both.device)
        return both.gather(1, index[..., None].expand(-1, -1, both.shape[-1]))


def filled_of(tensors: Tensors, present: Tensor | None) -> Tensor:
    """[B] positions that hold something: none in rows without a past."""
    filled = tensors["filled"]
    return filled if present is None else torch.where(present, filled, torch.zeros_like(filled))
