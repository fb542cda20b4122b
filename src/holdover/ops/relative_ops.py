"""Relative attention as two operations of torch, forward and backward: what starts the kernels.

A compiler takes each for one operation and does not look inside. They know nothing of triton until
they run: it comes with torch for GPUs only.
"""

from typing import Any, Literal

import torch
from torch import Tensor

# Forward, and those of the gradients of keys (and values, and scores) and of queries.
Kernel = Literal["forward", "keys", "queries"]


@torch.library.custom_op("holdover::relative_attention", mutates_args=())
def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, product: Tensor, unseen: Tensor | None, span: int
) -> tuple[Tensor, Tensor]:
    """What is read [B, H, T, d], and of each softmax the logarithm (of two) of its sum [B, H, T].

    query [B, H, T, d], key and value [B, H, K, d]; product [H, B, T, C]: see relative_triton.py; unseen
    [B, K] bool; keys at a distance of `span` or more are not read.
    """
    out, logsum = _empty_outputs(query)
    query, key, value = map(_whole_rows, (query, key, value))
    product = product.contiguous()
    options = _options("forward", query)
    with torch.cuda.device_of(query):
        _kernels().read[_grid(query, query.shape[2], options["QUERIES"])](
            query,
            key,
            value,
            product,
            _bytes(unseen, query),
            out,
            logsum,
            *_strides(query, key, value, out),
            *_sizes(query, key, product, span),
            UNSEEN=unseen is not None,
            **options,
        )
    return out, logsum


@torch.library.custom_op("holdover::relative_attention_backward", mutates_args=())
def relative_attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    product: Tensor,
    unseen: Tensor | None,
    span: int,
    out: Tensor,
    logsum: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of query, key, value and product."""
    to_query, to_key, to_value, to_product = _empty_gradients(query, key, product)
    gradient, query, key, value, out = map(_whole_rows, (gradient, query, key, value, out))
    product, logsum = product.contiguous(), logsum.contiguous()
    for_keys, for_queries = _options("keys", query), _options("queries", query)
    of_queries = _grid(query, query.shape[2], for_queries["QUERIES"])
    owed = torch.empty_like(logsum)
    kernels = _kernels()
    with torch.cuda.device_of(query):
        kernels.owed_by_softmax[of_queries](
            gradient,
            out,
            owed,
            *_strides(gradient, out),
            *query.shape[1:3],
            WIDTH=for_queries["WIDTH"],
            QUERIES=for_queries["QUERIES"],
        )
        kernels.into_keys[_grid(query, key.shape[2], for_keys["KEYS"])](
            query,
            key,
            value,
            product,
            _bytes(unseen, query),
            gradient,
            logsum,
            owed,
            to_key,
            to_value,
            to_product,
            *_strides(query, key, value, gradient, to_key, to_value),
            *_sizes(query, key, product, span),
            UNSEEN=unseen is not None,
            **for_keys,
        )
        # Behind the keys': it reads what they have left in the product's gradient.
        kernels.into_queries[of_queries](
            key,
            to_product,
            to_query,
            *_strides(key, to_query),
            *_sizes(query, key, product, span),
            **for_queries,
        )
    return to_query, to_key, to_value, to_product


@relative_attention.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, product: Tensor, unseen: Tensor | None, span: int
) -> tuple[Tensor, Tensor]:
    return _empty_outputs(query)


@relative_attention_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    product: Tensor,
    unseen: Tensor | None,
    span: int,
    out: Tensor,
    logsum: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_gradients(query, key, product)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.span = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, gradient: Tensor, to_logsum: Tensor | None) -> tuple[Any, ...]:
    """The sum of the softmax is kept for this and has no gradient of its own."""
    *inputs, out, logsum = ctx.saved_tensors
    found = relative_attention_backward(gradient, *inputs, ctx.span, out, logsum)
    return *found, None, None


relative_attention.register_autograd(_backward, setup_context=_keep)


def _kernels() -> Any:
    from ..ops import relative_triton

    return relative_triton


def _empty_outputs(query: Tensor) -> tuple[Tensor, Tensor]:
    """Position by position, as the map behind the heads takes it."""
    batch, heads, length, width = query.shape
    out = query.new_empty(batch, length, heads, width).transpose(1, 2)
    return out, query.new_empty(batch, heads, length, dtype=torch.float32)


def _empty_gradients(
    query: Tensor, key: Tensor, product: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    to_query, to_key, to_value = (_empty_outputs(like)[0] for like in (query, key, key))
    return to_query, to_key, to_value, product.new_empty(product.shape)


def tile(kernel: Kernel, dtype: torch.dtype, width: int) -> dict[str, int]:
    """Queries and keys of a tile, and how it is worked on.

    The largest with which kernels keep to their registers, or miss them by some bytes, and to 64 KiB of
    shared memory, as triton 3.6 compiles them for sm_80, 90 and 100; which are fastest was not measured.
    float32 goes without tensor cores, and takes many more registers.
    """
    if dtype == torch.float32:
        queries, keys = (32, 32) if kernel != "keys" and width <= 64 else (16, 16)
    elif kernel == "keys":
        queries, keys = 32, 64 if width <= 64 else 32
    else:
        queries, keys = 64, 32
    return {"QUERIES": queries, "KEYS": keys, "num_warps": 4, "num_stages": 2}


def _options(kernel: Kernel, query: Tensor) -> dict[str, Any]:
    return {
        **tile(kernel, query.dtype, query.shape[-1]),
        "WIDTH": query.shape[-1],
        # Whoever computes in float32 wants all of its digits.
        "PRECISION": "ieee",
    }


def _sizes(query: Tensor, key: Tensor, product: Tensor, span: int) -> tuple[Any, ...]:
    batch, heads, length, width = query.shape
    return batch, heads, length, key.shape[2], product.shape[-1], span, width**-0.5


def _strides(*tensors: Tensor) -> list[int]:
    """Of batch, head and position of each; the last one is 1."""
    return [stride for values in tensors for stride in values.stride()[:3]]


def _whole_rows(values: Tensor) -> Tensor:
    return values if values.stride(-1) == 1 else values.contiguous()


def _bytes(unseen: Tensor | None, instead: Tensor) -> Tensor:
    """[B, K]; where there is none the pointer is not read."""
    return instead if unseen is None else unseen.contiguous().view(torch.uint8)


def _grid(query: Tensor, places: int, of_a_tile: int) -> tuple[int]:
    """A program for each tile of `places`, in each head of each row."""
    return (-(-places // of_a_tile) * query.shape[0] * query.shape[1],)
