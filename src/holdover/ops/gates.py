"""Gates of a carried state (Hutchins et al. 2022): how much of it stays, how much is taken up.

    fixed    c' = g c + (1 - g) z      g = sigmoid(b), the same for every text and position
    lstm     c' = f c + i z            f = sigmoid(W_f h + b_f + 1), i = sigmoid(W_i h + b_i - 1)

c is the state, z what is new, and h what z is a linear map of; all but h have the width of the state.
"""

import math

import torch
from torch import Tensor, nn

FIRST_BIAS = 0.1
# Of the variance that keeps the size of what a matrix is given.
FIRST_KERNEL_VARIANCE = 0.1


class FixedGate(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        """hidden: the width of h, which this gate does not ask."""
        super().__init__()
        self.bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.bias, std=FIRST_BIAS)

    def forward(self, state: Tensor, new: Tensor, hidden: Tensor) -> Tensor:
        stays = self.bias.sigmoid()
        return stays * state + (1 - stays) * new


class LSTMGate(nn.Module):
    """Begins by keeping more than it takes up: that is what the 1 in each sigmoid does."""

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
        stays = (self.forget(hidden) + 1).sigmoid()
        taken = (self.input(hidden) - 1).sigmoid()
        return stays * state + taken * new


GATES: dict[str, type[FixedGate] | type[LSTMGate]] = {"fixed": FixedGate, "lstm": LSTMGate}
