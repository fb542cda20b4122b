"""Relative attention of Transformer-XL: scores by the distance between query and key.

    A_ij = [ (q_i + u) . k_j  +  (q_i + v) . (W_R R_{i-j}) ] / sqrt(d)      over [memory ; segment]

* Fused attention computes the first term itself. The second is one matrix product, with a row per query
  and a column per distance. The part that query i reads begins one column further left than that of
  query i - 1.
* Our kernel reads the product this way (relative_softmax.py). For torch's fused attention, this module
  turns it into a bias, as a view of the product, without padding, copying or shifting.
"""

import math
from typing import Any

import torch
from torch import Tensor

# Fused kernels take a bias whose rows begin at multiples of this many values.
ALIGNED = 8


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """[n, width] R = [sin(distance w), cos(distance w)], w_m = 10000^(-2m / width): sines first."""
    even = torch.arange(0, width, 2, device=distances.device, dtype=distances.dtype)
    angles = distances[:, None] * torch.exp(even * (-math.log(10000.0) / width))
    return torch.cat([angles.sin(), angles.cos()], -1)


def column_distances(
    keys: int, clamp: int | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """[W] the distance for each column of the product in `position_bias`.

    They go from `keys`, which is never read, down to 0. Further columns pad a row to one more than a
    multiple of ALIGNED, so that the rows of the view begin at multiples of it.
    """
    columns = -(-keys // ALIGNED) * ALIGNED + 1
    distances = keys - torch.arange(columns, device=device, dtype=dtype)
    return distances.clamp(min=0, max=clamp)


def hidden_keys(
    length: int, keys: int, span: int | None, unseen: Tensor | None, device: torch.device
) -> Tensor:
    """[B or 1, 1, T, keys] bool: the keys that each of the last `length` positions does not read.

    These are later keys, keys at a distance of `span` or more, and `unseen` keys [B, keys]. Every query
    reads itself, so that no softmax is empty.
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
    """`position_bias` from operations that torch differentiates itself: for compilers that break the
    custom gradient, and for tests."""
    product = position_product(query, positions).flatten(2)
    bias = _shifted(product, query.shape[1], hidden.shape[-1])
    return bias.transpose(0, 1).masked_fill(hidden, -torch.inf)


def _shifted(product: Tensor, length: int, keys: int) -> Tensor:
    """[..., T, K] the view of a product [..., T * W] whose row i begins at column T - i.

    That column is for distance K - (T - i), the distance of query i from the first key.
    """
    return product[..., length:].unflatten(-1, (length, -1))[..., :keys]


class _PositionBias(torch.autograd.Function):
    """One product and one view of it, forward and backward.

    Beyond the end of a row the view covers later keys, which forward masks. The softmax gives masked
    entries a zero gradient, so backward needs no mask.
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
        # In place, except under torch.compile: torch 2.11's compiler silently drops the gradient of a
        # Function that writes into its own view, on any device.
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
