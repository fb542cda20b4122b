"""The pooled state of "Adding Recurrence to Pretrained Transformers" (Yoshida, Ettinger, Gimpel).

    w        = softmax(alpha)                       one weight a layer
    z_n      = pool_i sum_l w_l h_{n,i}^(l)         the state: what is carried
    h_prev,n = FFN(z_n)                             read by window n+1 as a key and a value

`layer_logits` is alpha, `pool` pool_i, `map` FFN. A linear pool is applied to each layer before they
are mixed: the same sum, without keeping a mixture [B, T, k] alive.
"""

import torch
from torch import Tensor, nn

from ..config import RecurrenceConfig
from .base import Carry, CarryInputs, ModelDims, StepTrace, Tensors, feed_forward, with_start
from .pooling import POOLS


class PooledCarry(Carry):
    enters_at_insert_layer = True
    uses = frozenset(
        {
            "slots",
            "insert_layer",
            "pooling",
            "mix_layers",
            "map_hidden",
            "map_activation",
            "start",
            "pool_positions",
            "lower_layers",
        }
    )

    def __init__(self, config: RecurrenceConfig, shape: ModelDims) -> None:
        super().__init__(config, shape)
        self.mixes_all = config.mix_layers == "all"
        if self.mixes_all:
            self.layer_logits = nn.Parameter(torch.zeros(shape.layers))
        self.pool = POOLS[config.pooling](shape.hidden, config.slots)
        self.map = feed_forward(
            shape.hidden, config.map_hidden, shape.hidden, config.map_activation
        )
        if config.start == "learned":
            self.start = nn.Parameter(torch.zeros(config.slots, shape.hidden))

    def reset_parameters(self) -> None:
        if self.mixes_all:
            nn.init.zeros_(self.layer_logits)
        if self.settings.start == "learned":
            nn.init.zeros_(self.start)
        self.pool.reset_parameters()
        for layer in self.map:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def wants(self, layer: int) -> bool:
        return self.mixes_all or layer == self.shape.layers - 1

    def read(self, tensors: Tensors | None, present: Tensor | None, batch: int) -> CarryInputs:
        if self.settings.start == "learned":
            carried = None if tensors is None else tensors["summary"]
            summary = with_start(self.start, carried, present, batch)
            return CarryInputs(rows=self.map(summary))
        if tensors is None:
            return CarryInputs()
        return CarryInputs(rows=self.map(tensors["summary"]), visible=present)

    def observe(
        self, partial: Tensor | None, layer: int, hidden: Tensor, length: int | Tensor | None
    ) -> Tensor:
        pool_now = self.pool.linear and length is not None
        part = self.pool(hidden, length) if pool_now else hidden
        if self.mixes_all:
            part = self.layer_logits.softmax(0)[layer].to(part.dtype) * part
        return part if partial is None else partial + part

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        summary = trace.partial
        if trace.pieces or not self.pool.linear:
            summary = self.pool(summary, trace.length)
        return {"summary": summary}
