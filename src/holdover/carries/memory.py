"""Segment memory: the last M inputs of every layer, attended to by the backbone's own memory.

For backbones that take such a memory themselves (XLNet's `mems`, Transformer-XL). Unlike stock caching,
the memory ends with each row's own last token, and carries gradients until the horizon cuts it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import RecurrenceConfig
from .base import Carry, CarryInputs, ModelDims, StepTrace, Tensors, counts, last_positions
from .memory_settings import MemorySettings


class MemoryCarry(Carry):
    Settings = MemorySettings
    needs_layer_inputs = True

    @classmethod
    def check_model(cls, config: RecurrenceConfig, model: Any, spec: Any, dims: ModelDims) -> None:
        if not spec.takes_memory:
            raise ValueError(
                f'carry="memory" uses the backbone\'s own memory and {model.config.model_type} has '
                'none: use carry="pooled" or carry="tokens".'
            )

    def settings_for_reading(
        self, before: RecurrenceConfig, changes: Mapping[str, Any], memory_length: int | None
    ) -> dict[str, Any]:
        length = before.kind.memory_length if memory_length is None else memory_length
        if length is None and changes["window"] != before.window:
            # A shorter window must not shorten the memory, unless that was requested.
            length = before.window
        return {"memory_length": length}

    def state_shapes(self, window: int) -> dict[str, tuple[int, ...]]:
        length = self.settings.memory_length or window
        layers = {f"layer.{layer}": (length, self.dims.hidden) for layer in range(self.dims.layers)}
        return {"filled": (), **layers}

    def read(self, trace: StepTrace) -> CarryInputs:
        length = memory_length(trace)
        if trace.carried is None:
            return CarryInputs(memory_length=length)
        memory = [trace.carried[f"layer.{layer}"] for layer in range(self.dims.layers)]
        filled = filled_of(trace.carried, trace.present)
        return CarryInputs(memory=memory, memory_length=length, filled=filled)

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        assert trace.layer_inputs is not None
        first, length = trace.layer_inputs[0], memory_length(trace)
        tokens = counts(trace.tokens, first.device).expand(trace.batch)
        filled = torch.zeros_like(tokens)
        if trace.carried is not None:
            filled = filled_of(trace.carried, trace.present)
        kept: dict[str, Tensor] = {"filled": (filled + tokens).clamp(max=length)}
        for layer, inputs in enumerate(trace.layer_inputs):
            if trace.carried is not None:
                older = trace.carried[f"layer.{layer}"]
            else:
                older = inputs.new_zeros(trace.batch, length, inputs.shape[-1])
            kept[f"layer.{layer}"] = last_positions(older, inputs, trace.tokens, length)
        return kept


def memory_length(trace: StepTrace) -> int:
    """M for this call, by default the window. It may differ from the M of training."""
    return trace.settings.memory_length or trace.window


def filled_of(tensors: Tensors, present: Tensor | None) -> Tensor:
    """[B] the number of filled positions: 0 in rows without a past."""
    filled = tensors["filled"]
    return filled if present is None else torch.where(present, filled, torch.zeros_like(filled))
