"""Kernels of relative attention: softmax that reads scores by distance directly from their product.

    s_ij = q_i . k_j / sqrt(d) + product[i, K - 1 - distance],   distance = K - T + i - j

* query [B, H, T, d], key and value [B, H, K, d] have any strides, but contiguous rows. In the product
  [H, B, T, C], C >= K, column c is for distance K - 1 - c: row i is read from column T - 1 - i.
* Forward writes nothing of size T x K. Backward writes the gradient of the scores once, at its place in
  the gradient of the product, and computes the queries' gradient from there.
* Tiles that no query reads are skipped. Sums are in float32, products in the inputs' precision.
* Tiles of the product have keys as rows, so neighbours in memory differ in the first index, unlike in
  all other tiles. Triton gives tiles of equal shape and order the same layout. The layout of the other
  tiles, eight numbers per thread, would mean scattered accesses here, where no row is aligned.
"""

# The type checker does not accept triton's ranges as iterators.
# pyright: reportGeneralTypeIssues=false

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

# Exponentials use base 2, which the hardware supports.
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _place(positions, tile_length, heads):
    """This program's first position, batch row and head."""
    tiles = tl.cdiv(positions, tile_length)
    first = tl.program_id(0) % tiles * tile_length
    row = (tl.program_id(0) // tiles).to(tl.int64)
    return first, row // heads, row % heads


@triton.jit
def _seen(i, j, unseen, length, keys, span, UNSEEN: tl.constexpr):
    """True where query i reads key j: see `hidden_keys`."""
    distance = keys - length + i - j
    seen = (distance >= 0) & (distance < span) & (i < length)
    if UNSEEN:
        absent = tl.load(unseen + j, mask=j < keys, other=0)
        seen = seen & ((absent == 0) | (distance == 0))
    return seen


@triton.jit
def _first_key(first, length, keys, span, KEYS: tl.constexpr):
    """The first tile of keys for queries from `first` on: that with the first query's oldest key."""
    return tl.maximum(keys - length + first - span + 1, 0) // KEYS * KEYS


@triton.jit
def read(
    query,
    key,
    value,
    product,
    unseen,
    out,
    logsum,
    query_b,
    query_h,
    query_t,
    key_b,
    key_h,
    key_t,
    value_b,
    value_h,
    value_t,
    out_b,
    out_h,
    out_t,
    batch,
    heads,
    length,
    keys,
    columns,
    span,
    scale,
    UNSEEN: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    first, b, h = _place(length, QUERIES, heads)
    i = first + tl.arange(0, QUERIES)
    d = tl.arange(0, WIDTH)
    inside = i[:, None] < length
    q = tl.load(
        query + b * query_b + h * query_h + i[:, None] * query_t + d[None, :],
        mask=inside,
        other=0.0,
    )
    key += b * key_b + h * key_h
    value += b * value_b + h * value_h
    unseen += b * keys
    # Query i and key j are at column T - 1 - i + j of row i.
    product += (h * batch + b) * length * columns + length - 1
    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, WIDTH], tl.float32)
    last = tl.minimum(keys - length + first + QUERIES, keys)
    for start in range(_first_key(first, length, keys, span, KEYS), last, KEYS):
        j = start + tl.arange(0, KEYS)
        seen = _seen(i[None, :], j[:, None], unseen, length, keys, span, UNSEEN)
        place = i[None, :] * (columns - 1) + j[:, None]
        by_distance = tl.trans(tl.load(product + place, mask=seen, other=float("-inf")))
        known = j[:, None] < keys
        k = tl.load(key + j[:, None] * key_t + d[None, :], mask=known, other=0.0)
        v = tl.load(value + j[:, None] * value_t + d[None, :], mask=known, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2_E)
        scores += by_distance.to(tl.float32) * LOG2_E
        higher = tl.maximum(peak, tl.max(scores, 1))
        # A query may have read no key so far.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(peak - base)
        total = total * fade + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * fade[:, None], input_precision=PRECISION)
        peak = higher
    # Every query reads itself; only the padding of the last tile has read no key.
    total = tl.where(total == 0.0, 1.0, total)
    mixed = mixed / total[:, None]
    at = out + b * out_b + h * out_h + i[:, None] * out_t + d[None, :]
    tl.store(at, mixed.to(out.dtype.element_ty), mask=inside)
    rows = logsum + (b * heads + h) * length
    tl.store(rows + i, peak + tl.log2(total), mask=i < length)


@triton.jit
def owed_by_softmax(
    gradient,
    out,
    owed,
    gradient_b,
    gradient_h,
    gradient_t,
    out_b,
    out_h,
    out_t,
    heads,
    length,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
):
    """For each softmax the term that its backward subtracts from all score gradients: gradient . out."""
    first, b, h = _place(length, QUERIES, heads)
    i = first + tl.arange(0, QUERIES)
    d = tl.arange(0, WIDTH)
    inside = i[:, None] < length
    gradient += b * gradient_b + h * gradient_h
    out += b * out_b + h * out_h
    g = tl.load(gradient + i[:, None] * gradient_t + d[None, :], mask=inside, other=0.0)
    o = tl.load(out + i[:, None] * out_t + d[None, :], mask=inside, other=0.0)
    rows = owed + (b * heads + h) * length
    tl.store(rows + i, tl.sum(g.to(tl.float32) * o.to(tl.float32), 1), mask=i < length)


@triton.jit
def into_keys(
    query,
    key,
    value,
    product,
    unseen,
    gradient,
    logsum,
    owed,
    to_key,
    to_value,
    to_product,
    query_b,
    query_h,
    query_t,
    key_b,
    key_h,
    key_t,
    value_b,
    value_h,
    value_t,
    gradient_b,
    gradient_h,
    gradient_t,
    to_key_b,
    to_key_h,
    to_key_t,
    to_value_b,
    to_value_h,
    to_value_t,
    batch,
    heads,
    length,
    keys,
    columns,
    span,
    scale,
    UNSEEN: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of a tile of keys and values, and of all their scores. Keys are the rows, so that the
    weights enter the next products without a transpose."""
    first, b, h = _place(keys, KEYS, heads)
    j = first + tl.arange(0, KEYS)
    d = tl.arange(0, WIDTH)
    inside = j[:, None] < keys
    query += b * query_b + h * query_h
    gradient += b * gradient_b + h * gradient_h
    unseen += b * keys
    k = tl.load(
        key + b * key_b + h * key_h + j[:, None] * key_t + d[None, :], mask=inside, other=0.0
    )
    v = tl.load(
        value + b * value_b + h * value_h + j[:, None] * value_t + d[None, :],
        mask=inside,
        other=0.0,
    )
    rows = (b * heads + h) * length
    skewed = (h * batch + b) * length * columns + length - 1
    product += skewed
    to_product += skewed
    into_key = tl.zeros([KEYS, WIDTH], tl.float32)
    into_value = tl.zeros([KEYS, WIDTH], tl.float32)
    # From the query at the position of the first key to the last query within the last key's span.
    begin = tl.maximum(first - (keys - length), 0) // QUERIES * QUERIES
    last = tl.minimum(first + KEYS - 1 - (keys - length) + span, length)
    for start in range(begin, last, QUERIES):
        i = start + tl.arange(0, QUERIES)
        asking = i < length
        place = i[None, :] * (columns - 1) + j[:, None]
        seen = _seen(i[None, :], j[:, None], unseen, length, keys, span, UNSEEN)
        scores = tl.load(product + place, mask=seen, other=float("-inf")).to(tl.float32) * LOG2_E
        q = tl.load(query + i[:, None] * query_t + d[None, :], mask=asking[:, None], other=0.0)
        g = tl.load(
            gradient + i[:, None] * gradient_t + d[None, :], mask=asking[:, None], other=0.0
        )
        sums = tl.load(logsum + rows + i, mask=asking, other=0.0)
        owes = tl.load(owed + rows + i, mask=asking, other=0.0)
        scores += tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * LOG2_E)
        weights = tl.exp2(scores - sums[None, :])
        into_value = tl.dot(weights.to(g.dtype), g, into_value, input_precision=PRECISION)
        into_weights = tl.dot(v, tl.trans(g), input_precision=PRECISION)
        into_scores = (weights * (into_weights - owes[None, :])).to(q.dtype)
        # Zero where a key is unseen or too far. Later keys have no place in the product.
        earlier = (keys - length + i[None, :] - j[:, None] >= 0) & asking[None, :]
        tl.store(to_product + place, into_scores, mask=earlier)
        into_key = tl.dot(into_scores, q, into_key, input_precision=PRECISION)
    at = to_key + b * to_key_b + h * to_key_h + j[:, None] * to_key_t + d[None, :]
    tl.store(at, (into_key * scale).to(to_key.dtype.element_ty), mask=inside)
    at = to_value + b * to_value_b + h * to_value_h + j[:, None] * to_value_t + d[None, :]
    tl.store(at, into_value.to(to_value.dtype.element_ty), mask=inside)


@triton.jit
def into_queries(
    key,
    to_product,
    to_query,
    key_b,
    key_h,
    key_t,
    to_query_b,
    to_query_h,
    to_query_t,
    batch,
    heads,
    length,
    keys,
    columns,
    span,
    scale,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Gradients of a tile of queries, from those of their scores. Also writes zeros to the rest of their
    rows in the product's gradient, which no score reads."""
    first, b, h = _place(length, QUERIES, heads)
    i = first + tl.arange(0, QUERIES)
    d = tl.arange(0, WIDTH)
    asking = i[None, :] < length
    key += b * key_b + h * key_h
    to_product += (h * batch + b) * length * columns
    # Row i begins i columns further on: column c is at i + c. The zeros below use the same layout.
    rows = i[None, :] * (columns - 1)
    into_query = tl.zeros([QUERIES, WIDTH], tl.float32)
    last = tl.minimum(keys - length + first + QUERIES, keys)
    for start in range(_first_key(first, length, keys, span, KEYS), last, KEYS):
        j = start + tl.arange(0, KEYS)
        distance = keys - length + i[None, :] - j[:, None]
        written = (distance >= 0) & (distance < span) & asking
        into_scores = tl.load(
            to_product + (rows + length - 1 + j[:, None]), mask=written, other=0.0
        )
        k = tl.load(key + j[:, None] * key_t + d[None, :], mask=j[:, None] < keys, other=0.0)
        into_query = tl.dot(tl.trans(into_scores), k, into_query, input_precision=PRECISION)
    at = to_query + b * to_query_b + h * to_query_h + i[:, None] * to_query_t + d[None, :]
    tl.store(at, (into_query * scale).to(to_query.dtype.element_ty), mask=i[:, None] < length)

    nothing = tl.zeros([KEYS, QUERIES], to_product.dtype.element_ty)
    # Distances beyond the first key or the span are at the beginning of a row, padding at its end.
    for start in range(0, tl.maximum(length - 1 - first, keys - span), KEYS):
        c = start + tl.arange(0, KEYS)[:, None]
        unread = (c < length - 1 - i[None, :]) | (c < keys - span)
        tl.store(to_product + (rows + i[None, :] + c), nothing, mask=unread & asking)
    for start in range(keys, columns, KEYS):
        c = start + tl.arange(0, KEYS)[:, None]
        tl.store(to_product + (rows + i[None, :] + c), nothing, mask=(c < columns) & asking)
