"""The recurrence of scan.py and its mixture with attention, as Triton kernels (rsa_ops.py starts them).

A program walks over one lane: the positions p, p + d, p + 2d, .. of one head, in some columns. In a lane
the recurrence is z_i = rho (z_{i-1} + v_{i-1}), and the walk goes in chunks of C positions:

    y = L v + R S        L [C, C]  a part of rho^{i - j} below the diagonal, R [C] a part of rho^i
    S = rho^C S + U v    U [C]     rho^{C - j};   S is z at the first position of the chunk

Parts of complex numbers are rows of a matrix of ROWS, most of them 0, so that every sum is a product of
matrices: on a GPU a small product costs less than a sum over the rows that its threads share. Powers of
rho are tabulated once, in float32: the functions they need would fill a program's registers. They go
into products in the dtype of the values, as in chunked.py; states and sums are float32.

Backwards, a walk from the other end gives x = P^T dY, the gradient of the values. It is all that is
needed: <dY, P v> = <P^T dY, v>, so the gradients of gate, rate and angle are sums over the same walk,
of <v_i, dY_{i+k}> times a derivative of rho^k. What lies within a chunk is gathered in one C x C matrix
of such products and weighed at the end; what lies across chunks in one of ROWS x ROWS. No program adds
to a number of another's: the same inputs give the same gradients.
"""

# A type checker does not know triton's ranges for iterators.
# pyright: reportGeneralTypeIssues=false

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

ROWS = tl.constexpr(16)
"""Of a matrix of parts: the fewest that a product takes. Re, Im and their derivatives by the rate."""


@triton.jit
def _of_head(numbers: tl.constexpr, head, HEADS: tl.constexpr):
    """One of the numbers a program is made for: nothing has to be copied to the device."""
    found = tl.full((), numbers[0], tl.int32)
    for other in tl.static_range(1, HEADS):
        found = tl.where(head == other, numbers[other], found)
    return found


@triton.jit
def _size(rate, steps):
    """rate^steps for whole steps: exact at 0, and negative rates keep their sign."""
    size = tl.exp2(steps * tl.log2(tl.maximum(tl.abs(rate), 1.1754944e-38)))
    size = tl.where(steps % 2 == 1, tl.where(rate < 0, -1.0, 1.0), 1.0) * size
    return tl.where(steps == 0, 1.0, size)


@triton.jit
def tabulate(rates, angles, powers, CHUNK: tl.constexpr):
    """A head's table [4, CHUNK + 1]: Re and Im of rho^steps, and of its derivative by the rate."""
    head = tl.program_id(0)
    rate, angle = tl.load(rates + head), tl.load(angles + head)
    steps = tl.arange(0, 2 * CHUNK)
    wanted = steps <= CHUNK
    size, slope = _size(rate, steps), steps * _size(rate, tl.maximum(steps - 1, 0))
    cosine, sine = tl.cos(steps * angle), tl.sin(steps * angle)
    powers += head * 4 * (CHUNK + 1) + steps
    tl.store(powers, size * cosine, mask=wanted)
    tl.store(powers + (CHUNK + 1), size * sine, mask=wanted)
    tl.store(powers + 2 * (CHUNK + 1), slope * cosine, mask=wanted)
    tl.store(powers + 3 * (CHUNK + 1), slope * sine, mask=wanted)


@triton.jit
def _local(powers, sine, lag, CHUNK: tl.constexpr):
    """[C, C] a head's part of rho^lag at lags from 1 on."""
    return tl.load(powers + sine * (CHUNK + 1) + lag, mask=lag > 0, other=0.0)


@triton.jit
def _sums(powers, steps, row, CHUNK: tl.constexpr):
    """[ROWS, C] weights of sums over positions: rows Re, Im of rho^steps and of its derivative."""
    return tl.load(powers + row * (CHUNK + 1) + steps, mask=row < 4, other=0.0)


@triton.jit
def _readings(powers, sine, steps, row, CHUNK: tl.constexpr):
    """[C, ROWS] a head's part of rho^steps times a state whose first rows are Re and Im."""
    part = sine ^ row
    found = tl.load(powers + part * (CHUNK + 1) + steps, mask=row < 2, other=0.0)
    return tl.where(sine < row, -found, found)


@triton.jit
def _onward(powers, row, column, CHUNK: tl.constexpr):
    """[ROWS, ROWS] rho^C times a state, and the derivative of that: (rho S)' = rho' S + rho S'."""
    derived, part = row // 2 - column // 2, (row + column) % 2
    used = (row < 4) & (column < 4) & (derived >= 0)
    found = tl.load(powers + (2 * derived + part) * (CHUNK + 1) + CHUNK, mask=used, other=0.0)
    return tl.where(row % 2 < column % 2, -found, found)


@triton.jit
def scan_and_mix(
    attended,
    value,
    present,
    powers,
    gates,
    output,
    attended_b,
    attended_h,
    attended_t,
    value_b,
    value_h,
    value_t,
    present_b,
    output_b,
    output_h,
    output_t,
    keys,
    queries,
    DILATIONS: tl.constexpr,
    SINES: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    lane, head = tl.program_id(0) // BLOCKS, tl.program_id(1)
    batch, far_head = tl.program_id(2).to(tl.int64), head.to(tl.int64)
    column = (tl.program_id(0) % BLOCKS) * COLUMNS + tl.arange(0, COLUMNS)[None]
    place = tl.arange(0, CHUNK)
    attended += batch * attended_b + far_head * attended_h
    output += batch * output_b + far_head * output_h
    value += batch * value_b + far_head * value_h
    if head >= HEADS:
        # Heads without a recurrence.
        for start in range(0, tl.cdiv(queries - lane, LANES), CHUNK):
            query = (lane + LANES * (start + place))[:, None].to(tl.int64)
            read = tl.load(attended + query * attended_t + column, mask=query < queries)
            tl.store(output + query * output_t + column, read, mask=query < queries)
    else:
        dilation = _of_head(DILATIONS, head, HEADS)
        if lane < dilation:
            sine = _of_head(SINES, head, HEADS)
            gate = tl.load(gates)
            powers += head * 4 * (CHUNK + 1)
            dtype = value.dtype.element_ty
            row, other_row = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None]
            local = _local(powers, sine, place[:, None] - place[None], CHUNK).to(dtype)
            summing = _sums(powers, CHUNK - place[None], row, CHUNK).to(dtype)
            reading = _readings(powers, sine, place[:, None], other_row, CHUNK).to(dtype)
            onward = _onward(powers, row, other_row, CHUNK)
            state = tl.zeros((ROWS, COLUMNS), tl.float32)
            for start in range(0, tl.cdiv(keys - lane, dilation), CHUNK):
                key = (lane + dilation * (start + place))[:, None].to(tl.int64)
                there = key < keys
                if present is not None:
                    there &= tl.load(present + batch * present_b + key, mask=there, other=0) != 0
                read = tl.load(value + key * value_t + column, mask=there, other=0.0)
                recurrent = tl.dot(local, read, input_precision="ieee")
                recurrent = tl.dot(reading, state.to(dtype), recurrent, input_precision="ieee")
                state = tl.dot(onward, state, input_precision="ieee")
                state = tl.dot(summing, read, state, input_precision="ieee")
                query = key - (keys - queries)
                wanted = (query >= 0) & (query < queries)
                seen = tl.load(attended + query * attended_t + column, mask=wanted, other=0.0)
                mixed = (1 - gate) * seen.to(tl.float32) + gate * recurrent
                mixed = mixed.to(output.dtype.element_ty)
                tl.store(output + query * output_t + column, mixed, mask=wanted)


@triton.jit
def scan_back(
    gradient,
    value,
    present,
    rates,
    powers,
    gates,
    of_value,
    of_numbers,
    gradient_b,
    gradient_h,
    gradient_t,
    value_b,
    value_h,
    value_t,
    present_b,
    of_value_b,
    of_value_h,
    of_value_t,
    keys,
    queries,
    DILATIONS: tl.constexpr,
    SINES: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    lane, head = tl.program_id(0) // BLOCKS, tl.program_id(1)
    batch, far_head = tl.program_id(2).to(tl.int64), head.to(tl.int64)
    column = (tl.program_id(0) % BLOCKS) * COLUMNS + tl.arange(0, COLUMNS)[None]
    place = tl.arange(0, CHUNK)
    gradient += batch * gradient_b + far_head * gradient_h
    value += batch * value_b + far_head * value_h
    of_value += batch * of_value_b + far_head * of_value_h
    if head >= HEADS:
        nothing = tl.zeros((CHUNK, COLUMNS), of_value.dtype.element_ty)
        for start in range(0, tl.cdiv(keys - lane, LANES), CHUNK):
            key = (lane + LANES * (start + place))[:, None].to(tl.int64)
            tl.store(of_value + key * of_value_t + column, nothing, mask=key < keys)
    else:
        dilation = _of_head(DILATIONS, head, HEADS)
        sine = _of_head(SINES, head, HEADS)
        rate, gate = tl.load(rates + head), tl.load(gates)
        powers += head * 4 * (CHUNK + 1)
        of_gate, of_rate, of_angle = 0.0, 0.0, 0.0
        if lane < dilation:
            dtype = value.dtype.element_ty
            row, other_row = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None]
            lag = place[None] - place[:, None]
            local = _local(powers, sine, lag, CHUNK).to(dtype)
            # The state is the sum of rho^m dY over the positions m from the end of the chunk on.
            summing = _sums(powers, place[None], row, CHUNK).to(dtype)
            summing_values = _sums(powers, CHUNK - place[None], row, CHUNK).to(dtype)
            reading = _readings(powers, sine, CHUNK - place[:, None], other_row, CHUNK).to(dtype)
            onward = _onward(powers, row, other_row, CHUNK)
            state = tl.zeros((ROWS, COLUMNS), tl.float32)
            within = tl.zeros((CHUNK, CHUNK), tl.float32)
            across = tl.zeros((ROWS, ROWS), tl.float32)
            chunks = tl.cdiv(tl.cdiv(keys - lane, dilation), CHUNK)
            for number in range(0, chunks):
                start = (chunks - 1 - number) * CHUNK
                key = (lane + dilation * (start + place))[:, None].to(tl.int64)
                inside = key < keys
                there = inside
                if present is not None:
                    there &= tl.load(present + batch * present_b + key, mask=there, other=0) != 0
                read = tl.load(value + key * value_t + column, mask=there, other=0.0)
                query = key - (keys - queries)
                wanted = (query >= 0) & (query < queries)
                given = tl.load(gradient + query * gradient_t + column, mask=wanted, other=0.0)
                back = tl.dot(local, given, input_precision="ieee")
                back = tl.dot(reading, state.to(dtype), back, input_precision="ieee")
                back = tl.where(there, gate * back, 0.0).to(dtype)
                tl.store(of_value + key * of_value_t + column, back, mask=inside)
                within = tl.dot(read, tl.trans(given), within, input_precision="ieee")
                values = tl.dot(summing_values, read, input_precision="ieee")
                across = tl.dot(values, tl.trans(state), across, input_precision="ieee")
                state = tl.dot(onward, state, input_precision="ieee")
                state = tl.dot(summing, given, state, input_precision="ieee")
            # Row and column of `across` name two complex numbers' parts: 0, 1 Re, Im; 2, 3 of slopes.
            turns, slopes = row % 2 + other_row % 2, row // 2 + other_row // 2
            across = tl.where(turns == 2, -across, across)
            own, other = turns % 2 == sine, turns % 2 != sine
            of_gate = tl.sum(within * _local(powers, sine, lag, CHUNK))
            of_gate += tl.sum(tl.where((slopes == 0) & own, across, 0.0))
            slope = powers + 2 * (CHUNK + 1)
            of_rate = tl.sum(within * _local(slope, sine, lag, CHUNK))
            of_rate += tl.sum(tl.where((slopes == 1) & own, across, 0.0))
            of_angle = tl.sum(within * _local(slope, 1 - sine, lag, CHUNK))
            of_angle += tl.sum(tl.where((slopes == 1) & other, across, 0.0))
            of_rate *= gate
            # The derivative of rho^k by the angle is i rate times that by the rate.
            of_angle *= gate * rate * tl.where(sine == 0, -1.0, 1.0)
        count = HEADS * tl.num_programs(2) * tl.num_programs(0)
        program = (head * tl.num_programs(2) + tl.program_id(2)) * tl.num_programs(0)
        of_numbers += program + tl.program_id(0)
        tl.store(of_numbers, of_gate)
        tl.store(of_numbers + count, of_rate)
        tl.store(of_numbers + 2 * count, of_angle)


@triton.jit
def unmix(
    gradient,
    attended,
    gate,
    of_attended,
    of_gate,
    gradient_b,
    gradient_h,
    gradient_t,
    attended_b,
    attended_h,
    attended_t,
    of_attended_b,
    of_attended_h,
    of_attended_t,
    queries,
    HEADS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1)
    batch, far_head = tl.program_id(2).to(tl.int64), head.to(tl.int64)
    query = (tile * HEIGHT + tl.arange(0, HEIGHT))[:, None].to(tl.int64)
    column = tl.arange(0, WIDTH)[None]
    there = query < queries
    gradient += batch * gradient_b + far_head * gradient_h
    of_attended += batch * of_attended_b + far_head * of_attended_h
    given = tl.load(gradient + query * gradient_t + column, mask=there, other=0.0)
    if head >= HEADS:
        tl.store(of_attended + query * of_attended_t + column, given, mask=there)
    else:
        attended += batch * attended_b + far_head * attended_h
        seen = tl.load(attended + query * attended_t + column, mask=there, other=0.0)
        share = ((1 - tl.load(gate)) * given.to(tl.float32)).to(of_attended.dtype.element_ty)
        tl.store(of_attended + query * of_attended_t + column, share, mask=there)
        program = (head * tl.num_programs(2) + tl.program_id(2)) * tl.num_programs(0)
        tl.store(of_gate + program + tile, -tl.sum(given.to(tl.float32) * seen.to(tl.float32)))
