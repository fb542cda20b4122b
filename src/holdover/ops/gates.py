"""Gates of a carried state (Hutchins et al. 2022): they mix the old state with a new value.

    fixed    c' = g c + (1 - g) z      g = sigmoid(b), the same for every text and position
    lstm     c' = f c + i z            f = sigmoid(W_f h + b_f + 1), i = sigmoid(W_i h + b_i - 1)

c is the state, z the new value, and z a linear map of h. All but h have the width of the state.
"""

import math

import torch
from torch import Tensor, nn

FIRST_BIAS = 0.1
# Share of the variance with which a matrix keeps the scale of its input.
FIRST_KERNEL_VARIANCE = 0.1


class FixedGate(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        """hidden: the width of h, which this gate does not use."""
        super().__init__()
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.bias, std=FIRST_BIAS)

    def forward(self, state: Tensor, new: Tensor, hidden: Tensor) -> Tensor:
        keep = self.bias.sigmoid()
        return keep * state + (1 - keep) * new


class LSTMGate(nn.Module):
    """The 1 in each sigmoid makes it start by keeping more of the old state than it adds of the new."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.forget = nn.Linear(hidden, width)
        self.input = nn.Linear(hidden, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for gate in (self.forget, self.input):
            nn.init.normal_(gate.weight, std=math.sqrt(FIRST_KERNEL_VARIANCE / gate.in_features))
            nn.init.normal_(gate.bias, std=FIRST_BIAS)

    def forward(self, state: Tensor, new: Tensor, hidden: Tensor) -> Tensor:
        keep = (self.forget(hidden) + 1).sigmoid()
        add = (self.input(hidden) - 1).sigmoid()
        return keep * state + add * new


GATES: dict[str, type[FixedGate] | type[LSTMGate]] = {"fixed": FixedGate, "lstm": LSTMGate}
