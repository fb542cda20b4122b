"""The pooled state of "Adding Recurrence to Pretrained Transformers" (Yoshida, Ettinger, Gimpel).

    w        = softmax(alpha)                       one weight a layer
    z_n      = pool_i sum_l w_l h_{n,i}^(l)         the carried state
    h_prev,n = FFN(z_n)                             read by window n+1 as a key and a value

`layer_logits` is alpha, `pool` pool_i, `map` FFN. A linear pool is applied to each layer before they
are mixed: the same sum, without keeping a mixture [B, T, k] alive.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..config import RecurrenceConfig
from .base import Carry, CarryInputs, ModelDims, StepTrace, feed_forward, with_start
from .pooled_settings import PooledSettings
from .pooling import POOLS


class PooledCarry(Carry):
    Settings = PooledSettings

    @classmethod
    def check_model(cls, config: RecurrenceConfig, model: Any, spec: Any, dims: ModelDims) -> None:
        if config.insert_layer != "all" and config.insert_layer > dims.layers:
            raise ValueError(
                f"insert_layer={config.insert_layer} is out of range: {type(model).__name__} has layers "
                f'1 to {dims.layers}; choose one of them or "all".'
            )

    def __init__(self, config: RecurrenceConfig, dims: ModelDims) -> None:
        super().__init__(config, dims)
        settings: PooledSettings = self.settings
        self.mixes_all = settings.mix_layers == "all"
        if self.mixes_all:
            self.layer_logits = nn.Parameter(torch.zeros(dims.layers))
        self.pool = POOLS[settings.pooling](dims.hidden, settings.slots)
        self.map = feed_forward(
            dims.hidden, settings.map_hidden, dims.hidden, settings.map_activation
        )
        if settings.start == "learned":
            self.start = nn.Parameter(torch.zeros(settings.slots, dims.hidden))

    def reset_parameters(self) -> None:
        if self.mixes_all:
            nn.init.zeros_(self.layer_logits)
        if self.settings.start == "learned":
            nn.init.zeros_(self.start)
        self.pool.reset_parameters()
        for layer in self.map:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def settings_for_reading(
        self, before: RecurrenceConfig, changes: Mapping[str, Any], memory_length: int | None
    ) -> dict[str, Any]:
        changed = super().settings_for_reading(before, changes, memory_length)
        if changes["overlap"] != before.overlap:
            changed["pool_positions"] = "non_overlap"
        return changed

    def state_shapes(self, window: int) -> dict[str, tuple[int, ...]]:
        return {"summary": (self.settings.slots, self.dims.hidden)}

    def insert_layers(self) -> list[int]:
        chosen = self.settings.insert_layer
        return list(range(self.dims.layers)) if chosen == "all" else [chosen - 1]

    def state_free_layers(self) -> int:
        return self.insert_layers()[0]

    def wants(self, layer: int) -> bool:
        return self.mixes_all or layer == self.dims.layers - 1

    def read(self, trace: StepTrace) -> CarryInputs:
        carried = None if trace.carried is None else trace.carried["summary"]
        if self.settings.start == "learned":
            summary = with_start(self.start, carried, trace.present, trace.batch)
            return CarryInputs(rows=self.map(summary))
        if carried is None:
            return CarryInputs()
        return CarryInputs(rows=self.map(carried), visible=trace.present)

    def observe(self, trace: StepTrace, layer: int, hidden: Tensor) -> None:
        pool_now = self.pool.linear and trace.whole
        part = self.pool(hidden, pooled_positions(trace)) if pool_now else hidden
        if self.mixes_all:
            part = self.layer_logits.softmax(0)[layer].to(part.dtype) * part
        trace.partial = part if trace.partial is None else trace.partial + part

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        summary = trace.partial
        if not trace.whole or not self.pool.linear:
            summary = self.pool(summary, pooled_positions(trace))
        return {"summary": summary}


def pooled_positions(trace: StepTrace) -> int | Tensor:
    """How many positions of the window are pooled: one number, or [B]."""
    if trace.settings.pool_positions == "all" or trace.overlap == 0:
        return trace.tokens
    left = trace.tokens - trace.overlap
    return max(left, 1) if isinstance(left, int) else left.clamp(min=1)
