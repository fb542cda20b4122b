"""Memory tokens: m read positions in front of a window, m write positions after it.

All pass through every layer as tokens do. The outputs of the write positions are the state; mapped,
they are the read positions' embeddings of the next window. (The recurrent memory transformer's idea,
with a map between the two so that the widths and scales of outputs and embeddings may differ.)
"""

import math

import torch
from torch import Tensor, nn

from ..config import RecurrenceConfig
from .base import Carry, CarryInputs, ModelDims, StepTrace, feed_forward, with_start
from .tokens_settings import TokenSettings

WRITE_EMBEDDING_SCALE = 0.02
# Outputs are larger than embeddings (1.6 and 0.09 in a small GPT-2): mapped with torch's own first
# weights they drown the tokens, and gradients explode from window to window.
FIRST_MAP_SCALE = 0.1


class TokenCarry(Carry):
    Settings = TokenSettings

    def __init__(self, config: RecurrenceConfig, dims: ModelDims) -> None:
        super().__init__(config, dims)
        settings: TokenSettings = self.settings
        self.extra_positions = 2 * settings.slots
        self.map = feed_forward(
            dims.hidden, settings.map_hidden, dims.embedding, settings.map_activation
        )
        self.write_embeddings = nn.Parameter(torch.empty(settings.slots, dims.embedding))
        if settings.start == "learned":
            self.start = nn.Parameter(torch.zeros(settings.slots, dims.hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.write_embeddings, std=WRITE_EMBEDDING_SCALE)
        if self.settings.start == "learned":
            nn.init.zeros_(self.start)
        for layer in self.map:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        last = self.map[-1]
        assert isinstance(last, nn.Linear)
        bound = FIRST_MAP_SCALE / math.sqrt(last.in_features)
        # Drawn, not scaled: transformers keeps weights that it has loaded from being drawn again.
        nn.init.uniform_(last.weight, -bound, bound)
        nn.init.uniform_(last.bias, -bound, bound)

    def state_shapes(self, window: int) -> dict[str, tuple[int, ...]]:
        return {"memory": (self.settings.slots, self.dims.hidden)}

    def read(self, trace: StepTrace) -> CarryInputs:
        batch = trace.batch
        suffix = self.write_embeddings.expand(batch, -1, -1)
        carried = None if trace.carried is None else trace.carried["memory"]
        if self.settings.start == "learned":
            memory = with_start(self.start, carried, trace.present, batch)
            return CarryInputs(prefix=self.map(memory), suffix=suffix)
        if carried is None:
            # The read positions stay, hidden, so that tokens sit at the same places in all windows.
            hidden = torch.zeros(batch, dtype=torch.bool, device=suffix.device)
            return CarryInputs(prefix=torch.zeros_like(suffix), suffix=suffix, visible=hidden)
        return CarryInputs(prefix=self.map(carried), suffix=suffix, visible=trace.present)

    def write(self, trace: StepTrace) -> dict[str, Tensor]:
        assert trace.suffix is not None
        return {"memory": trace.suffix}
