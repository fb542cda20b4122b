"""P V for recurrence encoding matrices without the matrix: a scan, in time and memory linear in length.

With rho = rate e^{i angle} and d a head's dilation (1 where it has none), the recurrence is

    z_t = rho (z_{t-d} + v_{t-d})        (P V)_t = Re z_t, or Im z_t for sin heads

`step` computes it as it stands; `scan` and `scan_on` in chunks (chunked.py), `convolve` by Fourier
transforms. All give what the matrices of rem.py give.

Truncated at K steps, the sum is z_t - rho^K z_{t-Kd}: the scan, less the scan of the values delayed by
K d positions. Unmasked, it is the scan plus the scan from the other end.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .chunked import CHUNK, streams
from .rem import Kernels, lag_weights, powers


class ScanState(NamedTuple):
    """What the positions to come need of those gone by."""

    slots: Tensor  # [B, H, 2, K, D] Re and Im of z at the next K = max(dilations) positions
    # Under truncation: the same of the values that have left the reach of each head, and the last
    # values that are still within the longest reach.
    older: Tensor | None = None
    recent: Tensor | None = None  # [B, H, reach, D]


def scan(kernel: Kernels, values: Tensor, queries: int | None = None) -> Tensor:
    """rem(kernel, T, S) @ values, for values [B, H, S, D] and the last T = `queries` rows."""
    queries = values.shape[2] if queries is None else queries
    output = _truncated(kernel, values, queries, None)[0]
    if not kernel.masked:
        from_the_end = _truncated(kernel, values.flip(2), values.shape[2], None)[0].flip(2)
        output = output + from_the_end[:, :, -queries:]
    if kernel.keep_diagonal:
        # rho^0 is 1: all of it is real.
        diagonal = (~kernel.sine).to(values.dtype)[:, None, None]
        output = output + diagonal * values[:, :, -queries:]
    return output


def scan_on(
    kernel: Kernels, values: Tensor, state: ScanState | None = None
) -> tuple[Tensor, ScanState]:
    """Outputs of values [B, H, T, D] that come behind the state, and the state behind them."""
    _check_streaming(kernel)
    return _truncated(kernel, values, values.shape[2], state or empty_state(kernel, values))


def step(kernel: Kernels, value: Tensor, state: ScanState) -> tuple[Tensor, ScanState]:
    """One position [B, H, 1, D], as the recurrence is written: no powers but the truncation's."""
    _check_streaming(kernel)
    value = value[:, :, 0]
    output = _part(kernel, state.slots[:, :, :, 0])
    slots = _feed(kernel, state.slots, value)
    if state.older is None or state.recent is None:
        return output.to(value.dtype)[:, :, None], ScanState(slots)
    reach = _reach(kernel)
    kept = state.recent.shape[2]
    rate, angle = _precise(kernel, value)
    real, imaginary = powers(rate, angle, _steps_kept(kernel))
    tail = _turn(real[:, None], imaginary[:, None], state.older[:, :, :, 0])
    output = output - _part(kernel, tail)
    leaving = [
        state.recent[:, head, kept - lag] if lag else value[:, head]
        for head, lag in enumerate(reach)
    ]
    older = _feed(kernel, state.older, torch.stack(leaving, 1))
    recent = torch.cat([state.recent, value[:, :, None]], 2)[:, :, 1:]
    return output.to(value.dtype)[:, :, None], ScanState(slots, older, recent)


def empty_state(kernel: Kernels, values: Tensor) -> ScanState:
    """The state before the first position, for values like these."""
    batch, heads, _, width = values.shape
    dtype = torch.promote_types(values.dtype, torch.float32)
    slots = values.new_zeros(batch, heads, 2, max(kernel.dilations), width, dtype=dtype)
    if kernel.truncate is None:
        return ScanState(slots)
    recent = values.new_zeros(batch, heads, max(_reach(kernel)), width)
    return ScanState(slots, slots, recent)


def convolve(kernel: Kernels, values: Tensor, queries: int | None = None) -> Tensor:
    """The same product through the fast Fourier transform: time T log T, and any kernel of lags."""
    length = values.shape[2]
    queries = length if queries is None else queries
    rate, angle = _precise(kernel, values)
    lags = torch.arange(1 - length, length, device=values.device)
    weights = lag_weights(kernel._replace(rate=rate, angle=angle), lags[None])[:, 0]
    # As long as the whole linear convolution, which the transform would otherwise wrap around.
    size = 3 * length
    product = torch.fft.rfft(weights, size)[..., None] * torch.fft.rfft(
        values.to(rate.dtype), size, dim=2
    )
    whole = torch.fft.irfft(product, size, dim=2)[:, :, length - 1 : 2 * length - 1]
    return whole[:, :, -queries:].to(values.dtype)


def _check_streaming(kernel: Kernels) -> None:
    if not kernel.masked or kernel.keep_diagonal:
        raise ValueError(
            "a state is carried by masked kernels with a zero diagonal: an unmasked one reads the "
            "positions to come"
        )


def _steps_kept(kernel: Kernels) -> Tensor:
    """[H] the K steps within the truncation."""
    assert kernel.truncate is not None
    return kernel.truncate // kernel.dilation


def _reach(kernel: Kernels) -> list[int]:
    """K d for each head: the farthest lag with a weight."""
    assert kernel.truncate is not None
    return [kernel.truncate // dilation * dilation for dilation in kernel.dilations]


def _precise(kernel: Kernels, values: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(torch.promote_types(values.dtype, torch.float32), kernel.rate.dtype)
    return kernel.rate.to(dtype), kernel.angle.to(dtype)


def _turn(real: Tensor, imaginary: Tensor, pair: Tensor) -> Tensor:
    """The complex product with a pair [.., 2, .., D], whose parts are its third dimension."""
    one, other = pair.unbind(2)
    return torch.stack([real * one - imaginary * other, imaginary * one + real * other], 2)


def _part(kernel: Kernels, pair: Tensor) -> Tensor:
    """What a head reads of z [B, H, 2, ..]: its imaginary part for sin heads, else its real part."""
    real, imaginary = pair.unbind(2)
    sine = kernel.sine.reshape(-1, *[1] * (real.ndim - 2))
    return torch.where(sine, imaginary, real)


def _feed(kernel: Kernels, slots: Tensor, value: Tensor) -> Tensor:
    """One position on: every slot comes one nearer, and rho (z + v) waits d positions behind."""
    rate, angle = _precise(kernel, slots)
    rate, angle = rate[:, None], angle[:, None]
    real, imaginary = slots[:, :, :, 0].unbind(2)
    first = torch.stack([real + value.to(slots.dtype), imaginary], 2)
    fed = _turn(rate * angle.cos(), rate * angle.sin(), first)
    nearer = F.pad(slots[:, :, :, 1:], (0, 0, 0, 1))
    slot = torch.arange(slots.shape[3], device=slots.device)
    last = slot == kernel.dilation[:, None] - 1
    return torch.where(last[:, None, :, None], fed[:, :, :, None], nearer)


def _echo(kernel: Kernels, slots: Tensor, times: Tensor) -> Tensor:
    """z at times from now on if nothing more came in: rho^{t // d} slots[t mod d], [B, H, 2, t, D]."""
    rate, angle = _precise(kernel, slots)
    dilation = kernel.dilation[:, None]
    real, imaginary = powers(rate[:, None], angle[:, None], times // dilation)
    index = (times % dilation)[None, :, None, :, None]
    batch, _, _, _, width = slots.shape
    found = slots.gather(3, index.expand(batch, -1, 2, -1, width))
    return _turn(real[..., None], imaginary[..., None], found)


def _truncated(
    kernel: Kernels, values: Tensor, queries: int, state: ScanState | None
) -> tuple[Tensor, ScanState]:
    """The causal scan of values behind a state (None: nothing came before, and no state is wanted)."""
    length = values.shape[2]
    if kernel.truncate is None or (state is None and kernel.truncate >= length):
        output, slots = _causal(kernel, values, queries, None if state is None else state.slots)
        return output, ScanState(slots)
    slots, older, recent = state or (None, None, empty_state(kernel, values).recent)
    assert recent is not None
    both = torch.cat([recent, values], 2)
    starts = [recent.shape[2] - lag for lag in _reach(kernel)]
    delayed = torch.stack(
        [both[:, head, start : start + length] for head, start in enumerate(starts)], 1
    )
    # A difference of sums that can be much larger than itself: not in half precision.
    precise = torch.promote_types(values.dtype, torch.float32)
    output, slots = _causal(kernel, values.to(precise), queries, slots)
    tail, older = _causal(kernel, delayed.to(precise), queries, older, _steps_kept(kernel))
    output = (output - tail).to(values.dtype)
    return output, ScanState(slots, older, both[:, :, length:])


def _causal(
    kernel: Kernels,
    values: Tensor,
    queries: int,
    slots: Tensor | None,
    ahead: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs of the last `queries` positions and the slots behind; rho^ahead times, where given."""
    with _no_autocast(values.device):
        rate, angle = _precise(kernel, values)
        precise = kernel._replace(rate=rate, angle=angle)
        ahead = torch.zeros_like(kernel.dilation) if ahead is None else ahead
        output, after = _by_groups(precise, values, queries, ahead)
        if slots is not None:
            length, count = values.shape[2], after.shape[3]
            times = torch.arange(length + count, device=values.device)
            echo = _echo(precise, slots, times)
            slot_is_used = times[:count] < kernel.dilation[:, None]
            later = torch.where(slot_is_used[:, None, :, None], echo[:, :, :, length:], 0)
            after = after + later
            real, imaginary = powers(rate, angle, ahead)
            heard = _turn(real[:, None, None], imaginary[:, None, None], echo[:, :, :, :length])
            output = output + _part(precise, heard)[:, :, -queries:].to(output.dtype)
        return output, after


def _no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """The dtypes here are chosen; tensors without memory know no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def _by_groups(
    kernel: Kernels, values: Tensor, queries: int, ahead: Tensor
) -> tuple[Tensor, Tensor]:
    """Heads whose dilations share a short cycle are read together, others dilation by dilation."""
    dilations = kernel.dilations
    common = math.gcd(*dilations)
    if math.lcm(*dilations) <= CHUNK * common:
        return streams(kernel, values, queries, ahead, common)
    outputs: list[Tensor] = [values] * len(dilations)
    after: list[Tensor] = [values] * len(dilations)
    for dilation in sorted(set(dilations)):
        heads = [head for head, other in enumerate(dilations) if other == dilation]
        rate, angle, sine, dilation_of, steps = (
            torch.stack([x[head] for head in heads])
            for x in (kernel.rate, kernel.angle, kernel.sine, kernel.dilation, ahead)
        )
        group = Kernels(rate, angle, sine, dilation_of, (dilation,) * len(heads))
        theirs = torch.stack([values[:, head] for head in heads], 1)
        output, slots = streams(group, theirs, queries, steps, dilation)
        slots = F.pad(slots, (0, 0, 0, max(dilations) - dilation))
        for place, head in enumerate(heads):
            outputs[head], after[head] = output[:, place], slots[:, place]
    return torch.stack(outputs, 1), torch.stack(after, 1)
