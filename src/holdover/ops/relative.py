"""Relative attention of Transformer-XL: what a score owes to the distance of query and key.

    A_ij = [ (q_i + u) . k_j  +  (q_i + v) . (W_R R_{i-j}) ] / sqrt(d)      over [memory ; segment]

* The first term is what fused attention computes by itself; the second is one matrix product whose row
  i holds a column for every distance. What query i reads of it begins one column further left than
  what query i - 1 reads.
* Our kernel reads it so (relative_softmax.py). For torch's fused attention it becomes a bias here: a
  view of the product, nothing padded, copied or shifted.
"""

import math
from typing import Any

import torch
from torch import Tensor

# Fused kernels take a bias whose rows begin at multiples of this many values.
ALIGNED = 8


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """[n, width] R = [sin(distance w), cos(distance w)], w_m = 10000^(-2m / width), one half behind
    the other."""
    even = torch.arange(0, width, 2, device=distances.device, dtype=distances.dtype)
    angles = distances[:, None] * torch.exp(even * (-math.log(10000.0) / width))
    return torch.cat([angles.sin(), angles.cos()], -1)


def column_distances(
    keys: int, clamp: int | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """[W] the distance that each column of the product in `position_bias` stands for.

    From `keys`, which is never read, to 0; what is behind fills a row up to one more than a multiple
    of ALIGNED, so that the rows of the view begin at multiples of it.
    """
    columns = -(-keys // ALIGNED) * ALIGNED + 1
    distances = keys - torch.arange(columns, device=device, dtype=dtype)
    return distances.clamp(min=0, max=clamp)


def hidden_keys(
    length: int, keys: int, span: int | None, unseen: Tensor | None, device: torch.device
) -> Tensor:
    """[B or 1, 1, T, keys] bool: what the last `length` of `keys` positions do not read.

    Later keys, keys at a distance of `span` or more, and those `unseen` [B, keys]; every query reads
    itself, so that no softmax is empty.
    """
    place = torch.arange(keys, device=device)
    distance = place[keys - length :, None] - place
    hidden = distance < 0
    if span is not None:
        hidden = hidden | (distance >= span)
    hidden = hidden[None, None]
    if unseen is not None:
        hidden = hidden | (unseen[:, None, None] & (distance != 0))
    return hidden


def position_bias(query: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
    """[B, H, T, K] scores by distance, -inf where `hidden` [B or 1, 1, T, K].

    query [B, T, H, d]: q_i + v, scaled; positions [W, H, d]: W_R R at `column_distances`.
    """
    return _PositionBias.apply(query, positions, hidden)  # pyright: ignore[reportReturnType]


def position_product(query: Tensor, positions: Tensor) -> Tensor:
    """[H, B, T, W] scores by distance, a column for each of positions [W, H, d]; query [B, T, H, d]."""
    product = torch.bmm(_by_head(query), positions.permute(1, 2, 0))
    return product.unflatten(1, query.shape[:2])


def plain_bias(query: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
    """`position_bias` of operations that torch differentiates itself, for whom its own is not to be had:
    a compiler that errs, a comparison."""
    product = position_product(query, positions).flatten(2)
    bias = _shifted(product, query.shape[1], hidden.shape[-1])
    return bias.transpose(0, 1).masked_fill(hidden, -torch.inf)


def _shifted(product: Tensor, length: int, keys: int) -> Tensor:
    """[..., T, K] the view of a product [..., T * W] whose row i begins at column T - i.

    There stands the distance K - (T - i), which is that of query i from the first key.
    """
    return product[..., length:].unflatten(-1, (length, -1))[..., :keys]


class _PositionBias(torch.autograd.Function):
    """One product and one view of it in either direction.

    What the view reads beyond the end of a row is a later key's place, hidden below; the softmax
    hands hidden places no gradient, so they need no mask on the way back.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        ctx.save_for_backward(query, positions)
        length = query.shape[1]
        product = position_product(query, positions).flatten(2)
        bias = _shifted(product, length, hidden.shape[-1])
        if length % ALIGNED:
            bias = bias.contiguous()
        bias = bias.transpose(0, 1)
        # In place, but not for a compiler: that of torch 2.11 loses the gradient of a Function which
        # writes into a view of its own, on any device, and no loss shows it.
        if torch.compiler.is_compiling():
            return bias.masked_fill(hidden, -torch.inf)
        return bias.masked_fill_(hidden, -torch.inf)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, positions = ctx.saved_tensors
        (gradient,) = gradients
        batch, length, heads, width = query.shape
        columns = positions.shape[0]
        product = gradient.new_zeros(heads, batch, length * columns)
        _shifted(product, length, gradient.shape[-1]).copy_(gradient.transpose(0, 1))
        product = product.view(heads, batch * length, columns)
        to_query = torch.bmm(product, positions.transpose(0, 1))
        to_positions = torch.bmm(product.transpose(1, 2), _by_head(query))
        return (
            to_query.view(heads, batch, length, width).permute(1, 2, 0, 3),
            to_positions.transpose(0, 1),
            None,
        )


def _by_head(query: Tensor) -> Tensor:
    """[B, T, H, d] -> [H, B * T, d], a view."""
    batch, length, heads, width = query.shape
    return query.permute(2, 0, 1, 3).reshape(heads, batch * length, width)
