"""Softmax over scores by content and by distance, with a kernel of our own where one fits.

* On a GPU (DEVICES), the kernel of relative_triton.py reads the scores by distance directly from their
  matrix product: no bias is written, masked or shifted. `relative_attention` and its backward are custom
  operators of torch, which a compiler treats as one operation each. They import triton when they first
  run, because triton comes only with torch for GPUs.
* Elsewhere, the scores by distance become a bias for torch's fused attention.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from . import DEVICES, HAS_TRITON, is_capable
from .relative import plain_bias, position_bias, position_product

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
WIDTHS = (16, 32, 64, 128)
# With fewer queries a tile is mostly empty, as for the single tokens of generation.
FEWEST_QUERIES = 16


@dataclass(frozen=True)
class PositionScores:
    """Scores by distance, not computed yet, and the mask of attention."""

    query: Tensor  # [B, T, H, d] q_i + v, scaled
    positions: Tensor  # [W, H, d] W_R R at `column_distances`
    hidden: Tensor  # [B or 1, 1, T, K] bool: `hidden_keys` of the next two
    span: int | None
    unseen: Tensor | None  # [B, K] bool

    def bias(self) -> Tensor:
        """[B, H, T, K], -inf where a query does not read a key."""
        return position_bias(self.query, self.positions, self.hidden)

    def product(self) -> Tensor:
        """[H, B, T, C] as the kernel reads it: without the first column, which belongs to no key."""
        return position_product(self.query, self.positions[1:])


# eq=False: comparing or hashing tensors is meaningless here, and torch 2.11's compiler hashes an object
# before its fields exist.
@dataclass(frozen=True, eq=False)
class RelativeSoftmax:
    """softmax(q k / sqrt(d) + scores) v. Applies `dropout` even outside training."""

    scores: PositionScores
    dropout: float = 0.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, H, T, d] from query [B, H, T, d], key and value [B, H, K, d]."""
        scores = self.scores
        if self.dropout == 0 and kernel_fits(query, key, value, scores.query, scores.positions):
            span = key.shape[2] if scores.span is None else scores.span
            return relative_attention(query, key, value, scores.product(), scores.unseen, span)[0]
        return scaled_dot_product_attention(
            query, key, value, attn_mask=scores.bias(), dropout_p=self.dropout
        )

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """The matrix [B, H, T, K], after dropout."""
        by_content = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        scores = by_content + plain_bias(
            self.scores.query, self.scores.positions, self.scores.hidden
        )
        precise = torch.promote_types(scores.dtype, torch.float32)
        return dropout(scores.softmax(-1, dtype=precise).to(query.dtype), self.dropout)


def kernel_fits(query: Tensor, *others: Tensor) -> bool:
    return (
        HAS_TRITON
        and query.device.type in DEVICES
        and query.dtype in DTYPES
        and all(other.dtype == query.dtype for other in others)
        and query.shape[-1] in WIDTHS
        and query.shape[2] >= FEWEST_QUERIES
        and is_capable(query.device)
    )


# The forward kernel, that for gradients of keys, values and scores, and that for gradients of queries.
Kernel = Literal["forward", "keys", "queries"]


@torch.library.custom_op("holdover::relative_attention", mutates_args=())
def relative_attention(
    query: Tensor, key: Tensor, value: Tensor, product: Tensor, unseen: Tensor | None, span: int
) -> tuple[Tensor, Tensor]:
    """The output [B, H, T, d], and the base-2 logarithm of each softmax's sum [B, H, T].

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
    """Gradients of query, key, value and product."""
    to_query, to_key, to_value, to_product = _empty_gradients(query, key, product)
    gradient, query, key, value, out = map(_whole_rows, (gradient, query, key, value, out))
    product, logsum = product.contiguous(), logsum.contiguous()
    for_keys, for_queries = _options("keys", query), _options("queries", query)
    query_grid = _grid(query, query.shape[2], for_queries["QUERIES"])
    owed = torch.empty_like(logsum)
    kernels = _kernels()
    with torch.cuda.device_of(query):
        kernels.owed_by_softmax[query_grid](
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
        # After into_keys, because it reads the product's gradient that into_keys wrote.
        kernels.into_queries[query_grid](
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
    """Only backward uses the second output, so it has no gradient."""
    *inputs, out, logsum = ctx.saved_tensors
    gradients = relative_attention_backward(gradient, *inputs, ctx.span, out, logsum)
    return *gradients, None, None


relative_attention.register_autograd(_backward, setup_context=_keep)


def _kernels() -> Any:
    from . import relative_triton

    return relative_triton


def _empty_outputs(query: Tensor) -> tuple[Tensor, Tensor]:
    """In the memory layout [B, T, H, d], which the output projection reads without a copy."""
    batch, heads, length, width = query.shape
    out = query.new_empty(batch, length, heads, width).transpose(1, 2)
    return out, query.new_empty(batch, heads, length, dtype=torch.float32)


def _empty_gradients(
    query: Tensor, key: Tensor, product: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    to_query, to_key, to_value = (_empty_outputs(like)[0] for like in (query, key, key))
    return to_query, to_key, to_value, product.new_empty(product.shape)


def tile(kernel: Kernel, dtype: torch.dtype, width: int) -> dict[str, int]:
    """The size of a tile, and triton's launch options for it.

    These are the largest tiles with which kernels stay within 64 KiB of shared memory and (nearly)
    within their registers, when triton 3.6 compiles for sm_80, 90 and 100. Their speed was not
    compared. float32 runs without tensor cores and needs many more registers.
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
        # Full float32 precision, not TF32.
        "PRECISION": "ieee",
    }


def _sizes(query: Tensor, key: Tensor, product: Tensor, span: int) -> tuple[Any, ...]:
    batch, heads, length, width = query.shape
    return batch, heads, length, key.shape[2], product.shape[-1], span, width**-0.5


def _strides(*tensors: Tensor) -> list[int]:
    """Strides of batch, head and position for each tensor; the last stride is 1."""
    return [stride for values in tensors for stride in values.stride()[:3]]


def _whole_rows(values: Tensor) -> Tensor:
    return values if values.stride(-1) == 1 else values.contiguous()


def _bytes(unseen: Tensor | None, instead: Tensor) -> Tensor:
    """[B, K]; without `unseen` any pointer will do, because the kernel does not read it."""
    return instead if unseen is None else unseen.contiguous().view(torch.uint8)


def _grid(query: Tensor, positions: int, tile_length: int) -> tuple[int]:
    """One program per tile of positions, head and row."""
    return (-(-positions // tile_length) * query.shape[0] * query.shape[1],)
