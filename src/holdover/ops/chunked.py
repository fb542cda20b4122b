"""The recurrence z_t = rho (z_{t-d} + v_{t-d}) in chunks of C positions, as a few batched products.

Inside a chunk, a C x C product; of a chunk, what it adds to the z of the d positions behind it (its
summary); over the chunks, the same recurrence with rho^{C/d}; of the states between chunks, what the
positions behind them read:

    U  [2d, C]   summary_n = U v_n                       rho^{(C + k - j) / d} for slots k = 0..d-1
                 S_{n+1}   = rho^{C/d} S_n + summary_n   S_0 = 0
    L  [C, C]    Y_n       = L v_n + R S_n               a part of rho^{(i - j) / d}
    R  [C, 2d]                                           a part of rho^{i // d}, at slot i mod d

C is a multiple of every d. Powers have exponents from 0 on: they underflow to 0, nothing overflows.
A common divisor g of the dilations makes g interleaved streams that lie side by side as one wider
vector: [.., S, D] is looked at as [.., S / g, g D], since P (x) I_g acts on each of them alike.

Products take values in their own dtype (torch sums half-precision products in float32); weights and
the states between chunks are made in float32 or wider.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .rem import Kernels, powers

CHUNK = 64
"""About how many positions of a stream one product reads."""
STRETCH = 128
"""How many chunks one product over chunks reads."""


def streams(
    kernel: Kernels, values: Tensor, queries: int, ahead: Tensor, stride: int
) -> tuple[Tensor, Tensor]:
    """rho^ahead z, read at the last `queries` of values [B, H, S, D], and the z behind them.

    The latter are slots [B, H, 2, K, D]: parts of z at the next K = max(dilations) positions.
    `stride` divides every dilation; the rates are of the dtype the weights are made in.
    """
    batch, heads, length, width = values.shape
    reduced = [dilation // stride for dilation in kernel.dilations]
    slots = max(reduced)
    chunk = chunk_length(math.lcm(*reduced), _ceil(length, stride))
    chunks = _ceil(length, chunk * stride)
    # Zeros in front change no sum, and the end of the values is the end of a chunk.
    padded = F.pad(values, (0, 0, chunks * chunk * stride - length, 0))
    features = batch * stride * width
    # Heads first: a product per head, whose weights are not copied for every chunk and batch row.
    columns = (
        padded.reshape(batch, heads, chunks, chunk, stride * width)
        .permute(1, 3, 2, 0, 4)
        .reshape(heads, chunk, chunks * features)
    )
    local, into, out_of = chunk_weights(kernel, kernel.dilation // stride, chunk, slots, ahead)

    summaries = (into.to(values.dtype) @ columns).to(kernel.rate.dtype)
    states = between_chunks(
        summaries.reshape(heads, 2, slots, chunks, features),
        kernel.rate,
        kernel.angle,
        chunk * stride // kernel.dilation,
    )
    # Chunks of memory alone are summed up, but not read out.
    read = _ceil(queries, chunk * stride)
    before = states[:, :, :, chunks - read : chunks].to(values.dtype)
    output = torch.baddbmm(
        local.to(values.dtype) @ columns[:, :, (chunks - read) * features :],
        out_of.to(values.dtype),
        before.reshape(heads, 2 * slots, read * features),
    )
    output = (
        output.reshape(heads, chunk, read, batch, stride, width)
        .permute(3, 0, 2, 1, 4, 5)
        .reshape(batch, heads, read * chunk * stride, width)
    )
    after = (
        states[:, :, :, chunks]
        .reshape(heads, 2, slots, batch, stride, width)
        .permute(3, 0, 1, 2, 4, 5)
        .reshape(batch, heads, 2, slots * stride, width)
    )
    return output[:, :, -queries:], after


def chunk_length(cycle: int, length: int) -> int:
    """A multiple of the dilations' cycle, of about CHUNK positions, no longer than needed."""
    return min(cycle * max(1, CHUNK // cycle), cycle * _ceil(length, cycle))


def chunk_weights(
    kernel: Kernels, dilation: Tensor, chunk: int, slots: int, ahead: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """L [H, C, C], U [H, 2 slots, C] and R [H, C, 2 slots] of the equations above."""
    rate, angle, sine, dilation, ahead = (
        x[:, None, None] for x in (kernel.rate, kernel.angle, kernel.sine, dilation, ahead)
    )
    position = torch.arange(chunk, device=rate.device)
    slot = torch.arange(slots, device=rate.device)

    lag = position[:, None] - position
    on = (lag >= 1) & (lag % dilation == 0)
    real, imaginary = powers(rate, angle, torch.where(on, lag // dilation, 1) + ahead)
    local = torch.where(on, torch.where(sine, imaginary, real), 0)

    lag = chunk + slot[:, None] - position
    on = (slot[:, None] < dilation) & (lag % dilation == 0)
    real, imaginary = powers(rate, angle, torch.where(on, lag // dilation, 1))
    into = torch.cat([torch.where(on, real, 0), torch.where(on, imaginary, 0)], 1)

    on = position[:, None] % dilation == slot
    real, imaginary = powers(rate, angle, position[:, None] // dilation + ahead)
    of_real, of_imaginary = (
        torch.where(on, torch.where(sine, one, other), 0)
        for one, other in ((imaginary, real), (real, -imaginary))
    )
    return local, into, torch.cat([of_real, of_imaginary], 2)


def between_chunks(summaries: Tensor, rate: Tensor, angle: Tensor, steps: Tensor) -> Tensor:
    """States S_0 .. S_N [H, 2, K, N + 1, F] from N summaries [H, 2, K, N, F].

    `steps` [H] is C / d, the power of rho from chunk to chunk. Up to STRETCH chunks are one product;
    more are read in stretches, whose ends are read likewise.
    """
    heads, _, slots, count, features = summaries.shape
    if count <= STRETCH:
        return _stretch(summaries, rate, angle, steps)
    stretches = _ceil(count, STRETCH)
    missing = stretches * STRETCH - count
    inside = (
        F.pad(summaries, (0, 0, missing, 0))
        .reshape(heads, 2, slots, stretches, STRETCH, features)
        .transpose(3, 4)
        .reshape(heads, 2, slots, STRETCH, stretches * features)
    )
    alone = _stretch(inside, rate, angle, steps)
    alone = alone.reshape(heads, 2, slots, STRETCH + 1, stretches, features)
    starts = between_chunks(alone[:, :, :, STRETCH], rate, angle, steps * STRETCH)
    place = torch.arange(STRETCH, device=rate.device)
    real, imaginary = (
        x[:, None, :, None, None]
        for x in powers(rate[:, None], angle[:, None], steps[:, None] * place)
    )
    one, other = starts[:, :, :, None, :stretches].unbind(1)
    echo = torch.stack([real * one - imaginary * other, imaginary * one + real * other], 1)
    states = (alone[:, :, :, :STRETCH] + echo).transpose(3, 4)
    states = states.reshape(heads, 2, slots, stretches * STRETCH, features)
    return torch.cat([states[:, :, :, missing:], starts[:, :, :, stretches:]], 3)


def _stretch(summaries: Tensor, rate: Tensor, angle: Tensor, steps: Tensor) -> Tensor:
    """`between_chunks` with one matrix of rotations."""
    heads, _, slots, count, features = summaries.shape
    chunk = torch.arange(count, device=rate.device)
    passed = torch.arange(-1, count, device=rate.device)[:, None] - chunk
    on = passed >= 0
    rate, angle, steps = (x[:, None, None] for x in (rate, angle, steps))
    real, imaginary = powers(rate, angle, steps * passed.clamp(min=0))
    real, imaginary = torch.where(on, real, 0), torch.where(on, imaginary, 0)
    turn = torch.cat([torch.cat([real, -imaginary], 2), torch.cat([imaginary, real], 2)], 1)
    columns = summaries.transpose(2, 3).reshape(heads, 2 * count, slots * features)
    states = (turn @ columns).reshape(heads, 2, count + 1, slots, features)
    return states.transpose(2, 3)


def _ceil(count: int, by: int) -> int:
    return -(-count // by)
