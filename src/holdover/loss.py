"""Cross-entropy as a sum, without keeping logits.

* Sums, divided once by the caller: windows and batches of different sizes weigh what they hold.
* `linear_cross_entropy` never holds more than a slice of logits, and none after it returns: where a
  gradient will be asked for, it is computed on the way (the loss is a scalar, so backward only scales
  it). Windows kept for BPTT therefore keep their hidden states, not their logits.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .windows import IGNORED

# Positions whose logits are held at once.
SLICE = 4096


def cross_entropy_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of -log p(target) over positions [..., V], in single precision at least."""
    precision = torch.promote_types(logits.dtype, torch.float32)
    flat = logits.reshape(-1, logits.shape[-1]).to(precision)
    return F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction="sum")


def nll(logits: Tensor, targets: Tensor) -> Tensor:
    """-log p of each position's target, zero where nothing is scored; shaped as the targets."""
    precision = torch.promote_types(logits.dtype, torch.float32)
    flat = logits.reshape(-1, logits.shape[-1]).to(precision)
    each = F.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction="none")
    return each.reshape(targets.shape)


@torch.no_grad()
def linear_nll(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """nll(hidden @ weight.T + bias, targets), never holding more than a slice of logits."""
    flat, wanted = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    parts = [
        nll(F.linear(flat[start : start + SLICE], weight, bias), wanted[start : start + SLICE])
        for start in range(0, flat.shape[0], SLICE)
    ]
    return torch.cat(parts).reshape(targets.shape)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> Tensor:
    """cross_entropy_sum(hidden @ weight.T + bias, targets) for hidden [B, T, k]."""
    hidden = hidden.reshape(-1, hidden.shape[-1])
    targets = targets.reshape(-1)
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    needed = (
        torch.is_grad_enabled() and hidden.requires_grad,
        torch.is_grad_enabled() and weight.requires_grad,
        torch.is_grad_enabled() and bias is not None and bias.requires_grad,
    )
    if not any(needed):
        return _accumulate(hidden, weight, bias, targets, needed)[0]
    return _LinearCrossEntropy.apply(hidden, weight, bias, targets, needed)


def _accumulate(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The loss and the gradients asked for, slice by slice."""
    precision = torch.promote_types(hidden.dtype, torch.float32)
    loss = torch.zeros((), dtype=precision, device=hidden.device)
    hidden_parts = []
    weight_gradient = bias_gradient = None
    for start in range(0, hidden.shape[0], SLICE):
        part, wanted = hidden[start : start + SLICE], targets[start : start + SLICE]
        logits = F.linear(part, weight, bias).to(precision)
        scored = wanted != IGNORED
        index = torch.where(scored, wanted, torch.zeros_like(wanted))[:, None]
        normaliser = logits.logsumexp(-1)
        nll = normaliser - logits.gather(1, index)[:, 0]
        loss = loss + torch.where(scored, nll, torch.zeros_like(nll)).sum()
        if not any(needed):
            continue
        # d loss / d logits = softmax - one-hot, zero where nothing is scored.
        slope = (logits - normaliser[:, None]).exp()
        classes = torch.arange(slope.shape[1], device=slope.device)
        slope = slope - (classes == index).to(slope.dtype)
        slope = torch.where(scored[:, None], slope, torch.zeros_like(slope)).to(hidden.dtype)
        if needed[0]:
            hidden_parts.append(slope @ weight)
        if needed[1]:
            product = slope.T @ part
            weight_gradient = product if weight_gradient is None else weight_gradient + product
        if needed[2]:
            total = slope.sum(0)
            bias_gradient = total if bias_gradient is None else bias_gradient + total
    hidden_gradient = torch.cat(hidden_parts) if hidden_parts else None
    return loss, hidden_gradient, weight_gradient, bias_gradient


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        needed: tuple[bool, bool, bool],
    ) -> Tensor:
        loss, *gradients = _accumulate(hidden, weight, bias, targets, needed)
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        (outer,) = outputs
        scaled = [None if gradient is None else gradient * outer for gradient in ctx.saved_tensors]
        return *scaled, None, None
