"""RSA's mixture of attention and recurrence as custom operators of torch (kernels: scan_triton.py).

A compiler treats each operator as one operation. They import triton when they first run, because triton
comes only with torch for GPUs.

Memory, in tensors [B, H, T, D]: plain attention holds ten at the peak of its backward (queries, keys,
values, the output, its gradient, three gradients, and the size of two in the fused kernel, one of
float32). The mixture adds two: its own output, because attention keeps its output for backward, and the
gradient of the attention's output. The output of the recurrence is not kept, because backward does not
need it.

The recurrence's gradient of the values would be a third, if the backward of the mixture computed it.
Autograd runs backward functions in reverse order of forward. So the mixture gives the values no
gradient. It depends on a `promise` instead, made before the attention. The promise's backward computes
that gradient after the attention's backward, which has then released its own tensors.
"""

from typing import Any

import torch
from torch import Tensor

from . import DEVICES, HAS_TRITON, is_capable
from .rem import Kernels

CHUNK, COLUMNS = {2: 64, 4: 32}, {2: 32, 4: 16}
"""Positions of a lane in one product, and columns of one program, by the bytes per number. Half of a
head of 64, so that more programs share the work; in float32, which runs without tensor cores, the
registers are the limit (as the compiler reports for compute capability 9.0)."""
TILE = 4096
"""Numbers per program in elementwise kernels."""
WARPS = 4
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def takes(kernel: Kernels, value: Tensor, gate: Tensor) -> bool:
    """Whether the kernels support these inputs; if not, use scan.py."""
    width = value.shape[3]
    return (
        HAS_TRITON
        and value.device.type in DEVICES
        and value.dtype in DTYPES
        and (kernel.rate.dtype, kernel.angle.dtype, gate.dtype) == (torch.float32,) * 3
        and gate.numel() == 1
        and width >= 16
        and width & (width - 1) == 0
        and kernel.sines is not None
        and kernel.masked
        and kernel.truncate is None
        and not kernel.keep_diagonal
        and is_capable(value.device)
    )


def promise(
    kernel: Kernels, value: Tensor, gate: Tensor, present: Tensor | None, queries: int
) -> tuple[Tensor, Tensor]:
    """The input that makes `mix` differentiable; call it before the attention (see above)."""
    return torch.ops.holdover.rsa_promise(
        value, kernel.rate, kernel.angle, gate, present, queries, kernel.dilations, kernel.sines
    )


def mix(
    attended: Tensor,
    promised: tuple[Tensor, Tensor],
    kernel: Kernels,
    value: Tensor,
    gate: Tensor,
    present: Tensor | None,
) -> Tensor:
    """(1 - gate) attended + gate P V for the kernel's heads, attended [B, H, T, D] for the others.

    `value` [B, H, S, D] needs only the heads of the kernel. Keys that are not `present` [B, S] are not
    read.
    """
    return torch.ops.holdover.rsa_mix(
        attended, *promised, value, gate, present, kernel.dilations, kernel.sines
    )


@torch.library.custom_op("holdover::rsa_mix", mutates_args=())
def _mix(
    attended: Tensor,
    promised: Tensor,
    powers: Tensor,
    value: Tensor,
    gate: Tensor,
    present: Tensor | None,
    dilations: list[int],
    sines: list[bool],
) -> Tensor:
    attended, value, present = _rows(attended), _rows(value), _per_row(present, value)
    output = torch.empty_like(attended)
    batch, heads, queries, _ = attended.shape
    scan = _scan_options(value, dilations, sines)
    with torch.cuda.device_of(value):
        _kernels().scan_and_mix[(scan["LANES"] * scan["BLOCKS"], heads, batch)](
            attended,
            value,
            present,
            powers,
            gate,
            output,
            *attended.stride()[:3],
            *value.stride()[:3],
            0 if present is None else present.stride(0),
            *output.stride()[:3],
            value.shape[2],
            queries,
            **scan,
        )
    return output


@_mix.register_fake
def _(attended, promised, powers, value, gate, present, dilations, sines):
    return torch.empty_like(_rows(attended))


@torch.library.custom_op("holdover::rsa_mix_backward", mutates_args=())
def _mix_backward(
    gradient: Tensor, attended: Tensor, gate: Tensor, heads: int
) -> tuple[Tensor, Tensor]:
    """Gradients of `attended`, and of the gate through the attention."""
    gradient, attended = _rows(gradient), _rows(attended)
    batch, all_heads, queries, width = attended.shape
    height = max(1, TILE // width)
    tiles = -(-queries // height)
    attended_grad = torch.empty_like(attended)
    gate_grad = gate.new_empty(heads * batch * tiles)
    with torch.cuda.device_of(gradient):
        _kernels().unmix[(tiles, all_heads, batch)](
            gradient,
            attended,
            gate,
            attended_grad,
            gate_grad,
            *gradient.stride()[:3],
            *attended.stride()[:3],
            *attended_grad.stride()[:3],
            queries,
            HEADS=heads,
            HEIGHT=height,
            WIDTH=width,
            num_warps=WARPS,
        )
    return attended_grad, gate_grad.sum()


@_mix_backward.register_fake
def _(gradient, attended, gate, heads):
    return torch.empty_like(_rows(attended)), gate.new_empty(())


@torch.library.custom_op("holdover::rsa_promise", mutates_args=())
def _promise(
    value: Tensor,
    rate: Tensor,
    angle: Tensor,
    gate: Tensor,
    present: Tensor | None,
    queries: int,
    dilations: list[int],
    sines: list[bool],
) -> tuple[Tensor, Tensor]:
    """A placeholder [B, heads, T, D] with the memory of one number, and the powers of rho
    [heads, 4, C + 1]. No kernel reads the placeholder; the gradient of the mixture flows through it."""
    promised, powers = _promised(value, rate, queries, dilations)
    with torch.cuda.device_of(value):
        _kernels().tabulate[(len(dilations),)](
            rate.contiguous(), angle.contiguous(), powers, CHUNK=powers.shape[2] - 1
        )
    return promised, powers


@_promise.register_fake
def _(value, rate, angle, gate, present, queries, dilations, sines):
    return _promised(value, rate, queries, dilations)


def _promised(
    value: Tensor, rate: Tensor, queries: int, dilations: list[int]
) -> tuple[Tensor, Tensor]:
    batch, _, _, width = value.shape
    one = value.new_empty(()).expand(batch, len(dilations), queries, width)
    return one, rate.new_empty(len(dilations), 4, _chunk(value, dilations) + 1)


@torch.library.custom_op("holdover::rsa_recurrence_backward", mutates_args=())
def _recurrence_backward(
    gradient: Tensor,
    value: Tensor,
    rate: Tensor,
    powers: Tensor,
    gate: Tensor,
    present: Tensor | None,
    dilations: list[int],
    sines: list[bool],
) -> tuple[Tensor, Tensor]:
    """Gradients of the values, and [3, heads] of the gate (per head), the rates and the angles."""
    gradient, value, present = _rows(gradient), _rows(value), _per_row(present, value)
    value_grad = torch.empty_like(value)
    batch, heads, keys, _ = value.shape
    scan = _scan_options(value, dilations, sines)
    programs = scan["LANES"] * scan["BLOCKS"]
    parameter_grads = rate.new_empty(3, len(dilations), batch * programs)
    with torch.cuda.device_of(value):
        _kernels().scan_back[(programs, heads, batch)](
            gradient,
            value,
            present,
            rate.contiguous(),
            powers,
            gate,
            value_grad,
            parameter_grads,
            *gradient.stride()[:3],
            *value.stride()[:3],
            0 if present is None else present.stride(0),
            *value_grad.stride()[:3],
            keys,
            gradient.shape[2],
            **scan,
        )
    return value_grad, parameter_grads.sum(2)


@_recurrence_backward.register_fake
def _(gradient, value, rate, powers, gate, present, dilations, sines):
    return torch.empty_like(_rows(value)), rate.new_empty(3, len(dilations))


def _keep_mix(ctx, inputs, output):
    attended, _, _, _, gate, _, dilations, _ = inputs
    ctx.save_for_backward(attended, gate)
    ctx.heads = len(dilations)


def _mix_gradients(ctx, gradient):
    attended, gate = ctx.saved_tensors
    attended_grad, gate_grad = torch.ops.holdover.rsa_mix_backward(
        gradient, attended, gate, ctx.heads
    )
    promised_grad = gradient[:, : ctx.heads]
    return attended_grad, promised_grad, None, None, gate_grad.view_as(gate), None, None, None


def _keep_promise(ctx, inputs, output):
    value, rate, _, gate, present, _, ctx.dilations, ctx.sines = inputs
    ctx.save_for_backward(value, rate, output[1], gate, present)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _promise_gradients(ctx, gradient, _):
    value, rate, powers, gate, present = ctx.saved_tensors
    value_grad, parameter_grads = torch.ops.holdover.rsa_recurrence_backward(
        gradient, value, rate, powers, gate, present, ctx.dilations, ctx.sines
    )
    gate_grad, rate_grad, angle_grad = parameter_grads
    return value_grad, rate_grad, angle_grad, gate_grad.sum().view_as(gate), None, None, None, None


_mix.register_autograd(_mix_gradients, setup_context=_keep_mix)
_promise.register_autograd(_promise_gradients, setup_context=_keep_promise)


def _kernels() -> Any:
    from . import scan_triton

    return scan_triton


def _scan_options(value: Tensor, dilations: list[int], sines: list[bool]) -> dict[str, Any]:
    """Constants and launch options of the scan kernels."""
    columns = min(COLUMNS[value.dtype.itemsize], value.shape[3])
    return {
        "DILATIONS": tuple(dilations),
        "SINES": tuple(int(sine) for sine in sines),
        "HEADS": len(dilations),
        "LANES": max(dilations),
        "BLOCKS": value.shape[3] // columns,
        "CHUNK": _chunk(value, dilations),
        "COLUMNS": columns,
        "num_warps": WARPS,
    }


def _chunk(value: Tensor, dilations: list[int]) -> int:
    """Positions per chunk: no more than the longest lane has."""
    most, longest = CHUNK[value.dtype.itemsize], -(-value.shape[2] // min(dilations))
    return next(size for size in (16, 32, most) if size == most or size >= longest)


def _rows(tensor: Tensor) -> Tensor:
    """With contiguous rows, as the kernels need them."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _per_row(present: Tensor | None, value: Tensor) -> Tensor | None:
    return None if present is None else _rows(present).expand(value.shape[0], -1)
