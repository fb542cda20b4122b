"""Blocks: beside the memory of every layer, the state vectors of the layers that are recurrent.

For the Block-Recurrent Transformer: a window is a block. How a state changes is the model's to say
(`StepTrace.next_state`); here is what it is given, once the whole block is known, and under which name
its result is carried.
"""

from dataclasses import replace

import torch
from torch import Tensor

from .base import Block, CarryInputs, StepTrace, Tensors
from .memory import MemoryCarry, filled_of


class BlockCarry(MemoryCarry):
    def read(self, tensors: Tensors | None, present: Tensor | None, batch: int) -> CarryInputs:
        reading = super().read(tensors, present, batch)
        if tensors is None:
            return reading
        states = {layer: tensors[_name(layer)] for layer in self.shape.recurrent_layers}
        return replace(reading, states=states, visible=present)

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        assert trace.layer_inputs is not None and trace.next_state is not None
        kept = super().write(trace)
        carried = trace.carried
        unseen = self._unseen(trace, trace.layer_inputs[0])
        for layer in self.shape.recurrent_layers:
            block = Block(
                state=None if carried is None else carried[_name(layer)],
                present=trace.present,
                memory=None if carried is None else carried[f"layer.{layer}"],
                inputs=trace.layer_inputs[layer],
                unseen=unseen,
            )
            kept[_name(layer)] = trace.next_state(layer, block)
        return kept

    def _unseen(self, trace: StepTrace, inputs: Tensor) -> Tensor | None:
        """[B, M + T] places of the memory that hold nothing, and padding; None where there is none."""
        carried, unseen = trace.carried, None
        older = 0 if carried is None else carried["layer.0"].shape[1]
        place = torch.arange(older + inputs.shape[1], device=inputs.device)
        if carried is not None:
            unseen = place < (older - filled_of(carried, trace.present))[:, None]
        if isinstance(trace.tokens, Tensor):
            padding = place >= older + trace.tokens[:, None]
            unseen = padding if unseen is None else unseen | padding
        return unseen


def _name(layer: int) -> str:
    return f"states.{layer}"
