"""Blocks: the memory of every layer, and the state vectors of the layers that are recurrent.

For the Block-Recurrent Transformer: a window is a block. The model computes how a state changes
(`StepTrace.next_state`); this kind gives it the whole block and carries the result.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..config import RecurrenceConfig
from .base import Block, CarryInputs, ModelDims, StepTrace
from .memory import MemoryCarry, filled_of


class BlockCarry(MemoryCarry):
    carries_recurrent_layers = True

    @classmethod
    def check_model(cls, config: RecurrenceConfig, model: Any, spec: Any, dims: ModelDims) -> None:
        if not dims.recurrent_layers:
            raise ValueError(
                'carry="blocks" carries the states of recurrent layers, and this '
                f"{model.config.model_type} has none: name them in recurrent_layers of a holdover_xl "
                "model, or use another kind of state."
            )

    def state_shapes(self, window: int) -> dict[str, tuple[int, ...]]:
        state = (self.dims.state_vectors, self.dims.hidden)
        states = {_name(layer): state for layer in self.dims.recurrent_layers}
        return {**super().state_shapes(window), **states}

    def read(self, trace: StepTrace) -> CarryInputs:
        inputs = super().read(trace)
        if trace.carried is None:
            return inputs
        states = {layer: trace.carried[_name(layer)] for layer in self.dims.recurrent_layers}
        return replace(inputs, states=states, visible=trace.present)

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        assert trace.layer_inputs is not None and trace.next_state is not None
        kept = super().write(trace)
        carried = trace.carried
        unseen = self._unseen(trace, trace.layer_inputs[0])
        for layer in self.dims.recurrent_layers:
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
        """[B, M + T] places of the memory that hold nothing, and padding; None if all are filled."""
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
