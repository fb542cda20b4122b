"""Kinds of carried state that only tests have."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from holdover.carries.base import Carry, CarryInputs, last_positions


@dataclass(frozen=True, kw_only=True)
class TailSettings:
    TRAINING_ONLY: ClassVar = frozenset()
    tail: int = 8
    """Positions whose keys and values are carried."""


class KeyValueTail(Carry):
    """The keys and values of the last positions, through transformers' cache: no hooks."""

    Settings = TailSettings
    uses_cache = True

    def state_shapes(self, window):
        shape = (self.settings.tail, self.dims.key_value_heads, self.dims.head_size)
        layers = {f"{part}.{n}": shape for n in range(self.dims.layers) for part in ("k", "v")}
        return {"read": (), **layers}

    def read(self, trace):
        if trace.carried is None:
            return CarryInputs()
        read = trace.carried["read"]
        pairs = [
            tuple(trace.carried[f"{part}.{n}"].transpose(1, 2) for part in ("k", "v"))
            for n in range(self.dims.layers)
        ]
        if trace.present is not None:
            read = torch.where(trace.present, read, torch.zeros_like(read))
        filled = read.clamp(max=self.settings.tail)
        return CarryInputs(keys_values=pairs, position_offset=read, filled=filled)

    def write(self, trace):
        tokens = torch.as_tensor(trace.tokens, device=trace.device).expand(trace.batch)
        read = self.read(trace).position_offset
        written = {"read": tokens if read is None else read + tokens}
        for n, pair in enumerate(trace.keys_values):
            for part, new in zip("kv", pair, strict=True):
                new = new.transpose(1, 2)
                older = new.new_zeros(len(new), self.settings.tail, *new.shape[2:])
                older = older if trace.carried is None else trace.carried[f"{part}.{n}"]
                written[f"{part}.{n}"] = last_positions(
                    older, new, trace.tokens, self.settings.tail
                )
        return written
