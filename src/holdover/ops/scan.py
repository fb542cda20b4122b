"""P V for recurrence encoding matrices without the matrix: a scan, linear in length in time and memory.

With rho = rate e^{i angle} and d a head's dilation (1 if it has none), the recurrence is

    z_t = rho (z_{t-d} + v_{t-d})        (P V)_t = Re z_t, or Im z_t for sin heads

`step` computes it as written, `scan` and `scan_on` in chunks, `convolve` by Fourier transforms. All
agree with the matrices of rem.py. Truncated at K steps, the sum is z_t - rho^K z_{t-Kd}: the scan minus
the scan of the values delayed by K d positions. Unmasked, it is the scan plus the scan from the end.

In chunks of C positions the recurrence is a few batched products. Inside a chunk, it is a C x C product.
A chunk's summary is its contribution to the z of the next d positions. Over the chunks, the states
between them follow the same recurrence with rho^{C/d}, and later positions read these states:

    U  [2d, C]   summary_n = U v_n                       rho^{(C + k - j) / d} for slots k = 0..d-1
                 S_{n+1}   = rho^{C/d} S_n + summary_n   S_0 = 0
    L  [C, C]    Y_n       = L v_n + R S_n               Re or Im of rho^{(i - j) / d}
    R  [C, 2d]                                           Re or Im of rho^{i // d}, at slot i mod d

C is a multiple of every d. Exponents are never negative: powers may underflow to 0 but never overflow.
If g divides all dilations, there are g interleaved streams, which become one wider vector: a view
[.., S / g, g D] of [.., S, D], since P (x) I_g acts on each stream alike.

Products take values in their own dtype (torch sums half-precision products in float32); weights and
the states between chunks are in float32 or wider.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .rem import Kernels, lag_weights, powers

# About the number of positions in one product, and the number of chunks in one product over chunks.
CHUNK = 64
CHUNKS_AT_ONCE = 128


class ScanState(NamedTuple):
    """Everything that later positions need from earlier ones."""

    slots: Tensor  # [B, H, 2, K, D] Re and Im of z at the next K = max(dilations) positions
    # With truncation: the slots of values beyond each head's reach, and the last values within reach.
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
    """Outputs for values [B, H, T, D] that follow the state, and the state after them."""
    _check_streaming(kernel)
    return _truncated(kernel, values, values.shape[2], state or empty_state(kernel, values))


def step(kernel: Kernels, value: Tensor, state: ScanState) -> tuple[Tensor, ScanState]:
    """One position [B, H, 1, D] by the recurrence itself, without powers except for the truncation."""
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
    """The same product by fast Fourier transform: time T log T, for any kernel of lags."""
    length = values.shape[2]
    queries = length if queries is None else queries
    rate, angle = _precise(kernel, values)
    lags = torch.arange(1 - length, length, device=values.device)
    weights = lag_weights(kernel._replace(rate=rate, angle=angle), lags[None])[:, 0]
    # At least the length of the linear convolution: a shorter transform would wrap around.
    size = 3 * length
    transformed = torch.fft.rfft(values.to(rate.dtype), size, dim=2)
    product = torch.fft.rfft(weights, size)[..., None] * transformed
    whole = torch.fft.irfft(product, size, dim=2)[:, :, length - 1 : 2 * length - 1]
    return whole[:, :, -queries:].to(values.dtype)


def _check_streaming(kernel: Kernels) -> None:
    if not kernel.masked or kernel.keep_diagonal:
        raise ValueError(
            "streaming needs a masked kernel with a zero diagonal: masked=True, keep_diagonal=False (an "
            "unmasked kernel reads later positions)"
        )


def _steps_kept(kernel: Kernels) -> Tensor:
    """[H] K, the number of steps within the truncation."""
    assert kernel.truncate is not None
    return kernel.truncate // kernel.dilation


def _reach(kernel: Kernels) -> list[int]:
    """K d for each head: the longest lag with a weight."""
    assert kernel.truncate is not None
    return [kernel.truncate // dilation * dilation for dilation in kernel.dilations]


def _precise(kernel: Kernels, values: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(torch.promote_types(values.dtype, torch.float32), kernel.rate.dtype)
    return kernel.rate.to(dtype), kernel.angle.to(dtype)


def _turn(real: Tensor, imaginary: Tensor, pair: Tensor) -> Tensor:
    """The complex product with a pair [.., 2, .., D], which has Re and Im in its third dimension."""
    one, other = pair.unbind(2)
    return torch.stack([real * one - imaginary * other, imaginary * one + real * other], 2)


def _part(kernel: Kernels, pair: Tensor) -> Tensor:
    """The part of z [B, H, 2, ..] that a head outputs: imaginary for sin heads, otherwise real."""
    real, imaginary = pair.unbind(2)
    sine = kernel.sine.reshape(-1, *[1] * (real.ndim - 2))
    return torch.where(sine, imaginary, real)


def _feed(kernel: Kernels, slots: Tensor, value: Tensor) -> Tensor:
    """Advance one position: slots move one forward, and rho (z + v) enters at slot d - 1."""
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
    """z at later times without further input: rho^{t // d} slots[t mod d], [B, H, 2, t, D]."""
    rate, angle = _precise(kernel, slots)
    dilation = kernel.dilation[:, None]
    real, imaginary = powers(rate[:, None], angle[:, None], times // dilation)
    index = (times % dilation)[None, :, None, :, None]
    batch, _, _, _, width = slots.shape
    starts = slots.gather(3, index.expand(batch, -1, 2, -1, width))
    return _turn(real[..., None], imaginary[..., None], starts)


def _truncated(
    kernel: Kernels, values: Tensor, queries: int, state: ScanState | None
) -> tuple[Tensor, ScanState]:
    """The causal scan of values after a state; None if nothing came before and nothing follows."""
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
    # Not in half precision: a difference of sums that can be much larger than the result.
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
    """Outputs of the last `queries` positions (times rho^ahead), and the slots after them."""
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
            earlier = _turn(real[:, None, None], imaginary[:, None, None], echo[:, :, :, :length])
            output = output + _part(precise, earlier)[:, :, -queries:].to(output.dtype)
        return output, after


def _no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Keeps the dtypes chosen here. The meta device does not support autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def _by_groups(
    kernel: Kernels, values: Tensor, queries: int, ahead: Tensor
) -> tuple[Tensor, Tensor]:
    """All heads together if their dilations have a short cycle, otherwise one dilation at a time."""
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
        group_values = torch.stack([values[:, head] for head in heads], 1)
        output, slots = streams(group, group_values, queries, steps, dilation)
        slots = F.pad(slots, (0, 0, 0, max(dilations) - dilation))
        for place, head in enumerate(heads):
            outputs[head], after[head] = output[:, place], slots[:, place]
    return torch.stack(outputs, 1), torch.stack(after, 1)


def streams(
    kernel: Kernels, values: Tensor, queries: int, ahead: Tensor, stride: int
) -> tuple[Tensor, Tensor]:
    """rho^ahead z at the last `queries` of values [B, H, S, D], and the slots after them.

    Slots [B, H, 2, K, D] are Re and Im of z at the next K = max(dilations) positions. `stride` divides
    every dilation. The dtype of the rates is the dtype of the weights.
    """
    batch, heads, length, width = values.shape
    reduced = [dilation // stride for dilation in kernel.dilations]
    slots = max(reduced)
    chunk = chunk_length(math.lcm(*reduced), _ceil(length, stride))
    chunks = _ceil(length, chunk * stride)
    # Pad in front, where zeros change no sum, so that the values end with a chunk.
    padded = F.pad(values, (0, 0, chunks * chunk * stride - length, 0))
    features = batch * stride * width
    # Heads first: one product per head, without copying its weights for every chunk and batch row.
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
    # Chunks without queries contribute to the states but need no output.
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
    """A multiple of the dilations' cycle: about CHUNK positions, and no longer than necessary."""
    return min(cycle * max(1, CHUNK // cycle), cycle * _ceil(length, cycle))


def chunk_weights(
    kernel: Kernels, dilation: Tensor, chunk: int, slots: int, ahead: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """L [H, C, C], U [H, 2 slots, C] and R [H, C, 2 slots] from the equations above."""
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
    from_real, from_imaginary = (
        torch.where(on, torch.where(sine, one, other), 0)
        for one, other in ((imaginary, real), (real, -imaginary))
    )
    return local, into, torch.cat([from_real, from_imaginary], 2)


def between_chunks(summaries: Tensor, rate: Tensor, angle: Tensor, steps: Tensor) -> Tensor:
    """States S_0 .. S_N [H, 2, K, N + 1, F] from N summaries [H, 2, K, N, F].

    `steps` [H] is C / d, the power of rho from chunk to chunk. One product covers up to CHUNKS_AT_ONCE
    chunks. More chunks form groups, and the states between groups come from the same function.
    """
    heads, _, slots, count, features = summaries.shape
    if count <= CHUNKS_AT_ONCE:
        return _states_at_once(summaries, rate, angle, steps)
    size = CHUNKS_AT_ONCE
    groups = _ceil(count, size)
    missing = groups * size - count
    grouped = (
        F.pad(summaries, (0, 0, missing, 0))
        .reshape(heads, 2, slots, groups, size, features)
        .transpose(3, 4)
        .reshape(heads, 2, slots, size, groups * features)
    )
    inside = _states_at_once(grouped, rate, angle, steps)
    inside = inside.reshape(heads, 2, slots, size + 1, groups, features)
    starts = between_chunks(inside[:, :, :, size], rate, angle, steps * size)
    place = torch.arange(size, device=rate.device)
    real, imaginary = (
        x[:, None, :, None, None]
        for x in powers(rate[:, None], angle[:, None], steps[:, None] * place)
    )
    one, other = starts[:, :, :, None, :groups].unbind(1)
    echo = torch.stack([real * one - imaginary * other, imaginary * one + real * other], 1)
    states = (inside[:, :, :, :size] + echo).transpose(3, 4)
    states = states.reshape(heads, 2, slots, groups * size, features)
    return torch.cat([states[:, :, :, missing:], starts[:, :, :, groups:]], 3)


def _states_at_once(summaries: Tensor, rate: Tensor, angle: Tensor, steps: Tensor) -> Tensor:
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
