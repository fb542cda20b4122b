"""Recurrence encoding matrices (REM): the weights that a linear recurrence gives to earlier positions.

A linear RNN h_t = W_h h_{t-1} + W_x x_t is a sum over lags. With the eigenvalues of W_h, real lambda and
pairs gamma e^{+-i theta}, it is W_x x_t plus a sum of heads P V. At lag l = query - key >= 1, P has

    regular   f(l) = lambda^l                 lambda = tanh(eta)
    cos       f(l) = gamma^l cos(l theta)     gamma  = sigmoid(nu)
    sin       f(l) = gamma^l sin(l theta)
    dilated   f(l / d) where d divides l, 0 elsewhere: the matrix is P (x) I_d, cut to size

Each is the real part (regular, with angle 0, and cos) or the imaginary part (sin) of rho^n, with
n = l / d and rho = rate e^{i angle}. P is 0 on and above the diagonal; unmasked it is P + P^T; truncated
it is 0 at lags beyond the truncation. Rows are not normalised: they sum to at most
|rho| / (1 - |rho|). With M positions of memory, the T rows are the last of the square of size M + T.

Letters: B rows of a batch, H heads with a REM, T queries, S = M + T keys, D width of a head.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

FIRST_ANGLE = math.pi / 4
FIRST_NU = (1.0, 2.0)


class Kernels(NamedTuple):
    """One kernel per head, as values; matrices, scan and convolution all start from these."""

    rate: Tensor  # [H] lambda or gamma, in (-1, 1)
    angle: Tensor  # [H] theta; 0 for regular heads
    sine: Tensor  # [H] bool: the imaginary part of rho^n, not the real one
    dilation: Tensor  # [H] the same numbers as `dilations`, on the device
    dilations: tuple[int, ...]
    masked: bool = True
    truncate: int | None = None
    keep_diagonal: bool = False
    sines: tuple[bool, ...] | None = None  # the same values as `sine`, as constants for a kernel


def make_kernels(
    rate: Tensor,
    angle: Tensor,
    kinds: Sequence[str],
    dilations: Sequence[int],
    masked: bool = True,
    truncate: int | None = None,
    keep_diagonal: bool = False,
) -> Kernels:
    """From one value per head; kinds are "regular", "cos" or "sin"."""
    sines, dilations = tuple(kind == "sin" for kind in kinds), tuple(dilations)
    sine, dilation = _constants(sines, rate.device), _constants(dilations, rate.device)
    return Kernels(rate, angle, sine, dilation, dilations, masked, truncate, keep_diagonal, sines)


def powers(rate: Tensor, angle: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of rho^steps, steps >= 0 whole numbers that broadcast with the rates.

    pow with whole exponents works for negative rates. At rate 0 it keeps the gradient of the first
    step, which a computation from sign and absolute value would lose.
    """
    size = rate.pow(steps)
    turn = steps * angle
    return size * turn.cos(), size * turn.sin()


def lag_weights(kernel: Kernels, lag: Tensor) -> Tensor:
    """f at whole lags [..., rows, columns] -> [..., H, rows, columns]."""
    rate, angle, sine, dilation = (
        x[:, None, None] for x in (kernel.rate, kernel.angle, kernel.sine, kernel.dilation)
    )
    lag = lag if kernel.masked else lag.abs()
    on = (lag % dilation == 0) & (lag >= (0 if kernel.keep_diagonal else 1))
    if kernel.truncate is not None:
        on = on & (lag <= kernel.truncate)
    # For entries without a weight, compute the power of step 1 and discard it: gradients stay finite.
    real, imaginary = powers(rate, angle, torch.where(on, lag // dilation, 1))
    return torch.where(on, torch.where(sine, imaginary, real), 0)


def rem(
    kernel: Kernels, queries: int, keys: int | None = None, rows: Tensor | None = None
) -> Tensor:
    """The matrices [H, T, S]: the last T rows of the square of size S (S = T where not given).

    `rows` [B, H, u] selects queries, numbered from 0 to T - 1, per batch row and head: [B, H, u, S].
    """
    keys = queries if keys is None else keys
    # Rows hold weights of consecutive lags. So compute every lag once and take the rows as windows of
    # that list: the last query's row is the first window, each earlier query's begins one lag later.
    lags = torch.arange(keys - 1, -queries, -1, device=kernel.rate.device)
    weights = lag_weights(kernel, lags[None])[:, 0]
    if rows is None:
        return weights.unfold(-1, keys, 1).flip(1)
    starts = queries - 1 - rows
    return _Windows.apply(weights, starts, keys)  # pyright: ignore[reportReturnType]


class _Windows(torch.autograd.Function):
    """Windows of lists [H, N] that begin at `starts` [B, H, u]: [B, H, u, width].

    Backward needs only the starts, so only they are saved.
    """

    @staticmethod
    def forward(ctx: Any, lists: Tensor, starts: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(starts)
        ctx.length = lists.shape[1]
        head = torch.arange(len(lists), device=lists.device)[:, None]
        return lists.unfold(1, width, 1)[head, starts]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (starts,), (gradient,) = ctx.saved_tensors, gradients
        place = starts[..., None] + torch.arange(gradient.shape[3], device=starts.device)
        # [B, H, u, width] -> [H, B * u * width]
        place, values = (x.transpose(0, 1).flatten(1) for x in (place, gradient))
        lists = values.new_zeros(len(values), ctx.length)
        return lists.scatter_add(1, place, values), None, None


class RecurrenceEncoding(nn.Module):
    """The kernels of one layer's heads, and the gate that mixes them with softmax attention.

    `counts` are the numbers of heads of each kind: regular, cos, sin, then the three dilated kinds.
    One cos and one sin head share a (gamma, theta) pair; all heads of the layer share the gate `mu`.
    Heads are in the order regular, cos 1, sin 1, cos 2, sin 2, ..., then the dilated ones in the same
    order. `dilations` has one number for each dilated head in that order.

    `gate` is the initial mu: a number, or a (low, high) range to draw from. -3 leaves a trained model
    almost unchanged (sigmoid 0.047); 0 or (-3, 3) suit training from scratch.
    """

    def __init__(
        self,
        counts: Sequence[int],
        dilations: Sequence[int] = (),
        gate: float | tuple[float, float] = -3.0,
        masked: bool = True,
        truncate: int | None = None,
        keep_diagonal: bool = False,
    ) -> None:
        super().__init__()
        if len(counts) != 6 or min(counts) < 0 or sum(counts) == 0:
            raise ValueError(
                f"counts={tuple(counts)}: expected six numbers of heads, not all 0: regular, cos, sin, "
                "and the same three dilated"
            )
        if len(dilations) != sum(counts[3:]) or min(dilations, default=1) < 1:
            raise ValueError(
                f"dilations={tuple(dilations)}: expected one whole number of at least 1 for each of the "
                f"{sum(counts[3:])} dilated heads"
            )
        if truncate is not None and truncate < 1:
            raise ValueError(
                f"truncate={truncate}: expected the longest lag to keep, at least 1, or None"
            )
        self.counts = tuple(counts)
        self.gate_start = gate
        self.masked, self.truncate, self.keep_diagonal = masked, truncate, keep_diagonal
        self.dilations = (1,) * sum(counts[:3]) + tuple(dilations)
        self.kinds, self.parameter_of = arrange_heads(self.counts)
        self.regular_rates = counts[0] + counts[3]
        self.pairs = max(counts[1:3]) + max(counts[4:6])
        if self.regular_rates:
            self.eta = nn.Parameter(torch.empty(self.regular_rates))
        if self.pairs:
            self.nu = nn.Parameter(torch.empty(self.pairs))
            self.theta = nn.Parameter(torch.empty(self.pairs))
        self.mu = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    @property
    def heads(self) -> int:
        return len(self.kinds)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            if self.regular_rates:
                # Evenly over [-2, -1] and [1, 2]: lambda from -0.96 to -0.76 and from 0.76 to 0.96.
                place = (torch.arange(self.regular_rates) + 0.5) * 2 / self.regular_rates
                self.eta.copy_(torch.where(place < 1, place - 2, place))
            if self.pairs:
                nn.init.uniform_(self.nu, *FIRST_NU)
                nn.init.constant_(self.theta, FIRST_ANGLE)
            if isinstance(self.gate_start, tuple):
                nn.init.uniform_(self.mu, *self.gate_start)
            else:
                nn.init.constant_(self.mu, self.gate_start)

    def gate(self) -> Tensor:
        """sigmoid(mu), a scalar."""
        return at_least_single(self.mu).sigmoid()

    def forward(self) -> Kernels:
        rates: list[Tensor] = []
        angles: list[Tensor] = []
        if self.regular_rates:
            rates += at_least_single(self.eta).tanh().unbind()
            angles += torch.zeros_like(at_least_single(self.eta)).unbind()
        if self.pairs:
            rates += at_least_single(self.nu).sigmoid().unbind()
            angles += at_least_single(self.theta).unbind()
        rate, angle = (
            torch.stack([of[index] for index in self.parameter_of]) for of in (rates, angles)
        )
        return make_kernels(
            rate,
            angle,
            self.kinds,
            self.dilations,
            self.masked,
            self.truncate,
            self.keep_diagonal,
        )

    def extra_repr(self) -> str:
        return f"counts={self.counts}, dilations={self.dilations}"


def arrange_heads(counts: Sequence[int]) -> tuple[list[str], list[int]]:
    """For each head its kind, and the index of its rate in [rates of regular heads, rates of pairs]."""
    kinds: list[str] = []
    parameter_of: list[int] = []
    regular, pair = 0, counts[0] + counts[3]
    for regulars, cosines, sines in (counts[:3], counts[3:]):
        kinds += ["regular"] * regulars
        parameter_of += range(regular, regular + regulars)
        regular += regulars
        for number in range(max(cosines, sines)):
            members = ["cos"] * (number < cosines) + ["sin"] * (number < sines)
            kinds += members
            parameter_of += [pair + number] * len(members)
        pair += max(cosines, sines)
    return kinds, parameter_of


def at_least_single(parameter: Tensor) -> Tensor:
    """In float32 or wider: half precision is too coarse for powers of a rate near 1."""
    return parameter.to(torch.promote_types(parameter.dtype, torch.float32))


def _constants(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Constants, created on the device. A copy from the host would wait for the device, and a buffer
    would be lost when a model is created without memory and only its parameters are loaded."""
    return torch.stack([torch.full((), number, device=device) for number in numbers])
