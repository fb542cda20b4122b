"""Triton kernels for the recurrence of scan.py and its mixture with attention, launched by rsa_ops.py.

A program scans one lane: the positions p, p + d, p + 2d, .. of one head, in some columns. As in
scan.py, d is the head's dilation, rho = rate e^{i angle}, and y = P v is Re z or Im z. In a lane
the recurrence is z_i = rho (z_{i-1} + v_{i-1}), and the scan goes in chunks of C positions:

    y = L v + R S        L [C, C]  Re or Im of rho^{i - j} below the diagonal, R [C] of rho^i
    S = rho^C S + U v    U [C]     rho^{C - j};   S is z at the first position of the chunk

Re and Im of complex numbers are rows of a matrix with ROWS rows, most of them 0, so that every sum is a
matrix product: on a GPU, a small product costs less than a sum over rows across threads. A table holds
the powers of rho in float32, because computing them here would fill a program's registers. They enter
products in the dtype of the values, as in scan.py; states and sums are float32.

Backward scans from the other end for x = P^T dY, the gradient of the values. Since
<dY, P v> = <P^T dY, v>, the same scan also gives the gradients of gate, rate and angle: sums of
<v_i, dY_{i+k}> times a derivative of rho^k. The products within chunks are summed in one C x C matrix
and weighted at the end, those across chunks in one of ROWS x ROWS. No two programs add to the same
number, so the same inputs always give the same gradients.
"""

# The type checker does not accept triton's ranges as iterators.
# pyright: reportGeneralTypeIssues=false

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

ROWS = tl.constexpr(16)
"""Rows of a matrix of Re, Im and their derivatives by the rate; tl.dot needs at least 16."""


@triton.jit
def _of_head(numbers: tl.constexpr, head, HEADS: tl.constexpr):
    """This head's number. As compile-time constants, the numbers need no copy to the device."""
    number = tl.full((), numbers[0], tl.int32)
    for other in tl.static_range(1, HEADS):
        number = tl.where(head == other, numbers[other], number)
    return number


@triton.jit
def _size(rate, steps):
    """rate^steps for whole steps: exact at 0, with the right sign for negative rates."""
    size = tl.exp2(steps * tl.log2(tl.maximum(tl.abs(rate), 1.1754944e-38)))
    size = tl.where(steps % 2 == 1, tl.where(rate < 0, -1.0, 1.0), 1.0) * size
    return tl.where(steps == 0, 1.0, size)


@triton.jit
def tabulate(rates, angles, powers, CHUNK: tl.constexpr):
    """Write a head's table [4, CHUNK + 1]: Re and Im of rho^steps and of its derivative by the rate."""
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
    """[C, C] Re or Im of rho^lag for a head; 0 at lags below 1."""
    return tl.load(powers + sine * (CHUNK + 1) + lag, mask=lag > 0, other=0.0)


@triton.jit
def _sums(powers, steps, row, CHUNK: tl.constexpr):
    """[ROWS, C] weights of sums over positions: rows Re, Im of rho^steps and of its derivative."""
    return tl.load(powers + row * (CHUNK + 1) + steps, mask=row < 4, other=0.0)


@triton.jit
def _readings(powers, sine, steps, row, CHUNK: tl.constexpr):
    """[C, ROWS] weights for Re or Im of rho^steps times a state with Re and Im in its first rows."""
    part = sine ^ row
    power = tl.load(powers + part * (CHUNK + 1) + steps, mask=row < 2, other=0.0)
    return tl.where(sine < row, -power, power)


@triton.jit
def _onward(powers, row, column, CHUNK: tl.constexpr):
    """[ROWS, ROWS] advances a state by a chunk: rho^C S, and its derivative rho' S + rho S'."""
    derived, part = row // 2 - column // 2, (row + column) % 2
    used = (row < 4) & (column < 4) & (derived >= 0)
    power = tl.load(powers + (2 * derived + part) * (CHUNK + 1) + CHUNK, mask=used, other=0.0)
    return tl.where(row % 2 < column % 2, -power, power)


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
        # A head without a recurrence: copy.
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
    value_grad,
    parameter_grads,
    gradient_b,
    gradient_h,
    gradient_t,
    value_b,
    value_h,
    value_t,
    present_b,
    value_grad_b,
    value_grad_h,
    value_grad_t,
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
    value_grad += batch * value_grad_b + far_head * value_grad_h
    if head >= HEADS:
        nothing = tl.zeros((CHUNK, COLUMNS), value_grad.dtype.element_ty)
        for start in range(0, tl.cdiv(keys - lane, LANES), CHUNK):
            key = (lane + LANES * (start + place))[:, None].to(tl.int64)
            tl.store(value_grad + key * value_grad_t + column, nothing, mask=key < keys)
    else:
        dilation = _of_head(DILATIONS, head, HEADS)
        sine = _of_head(SINES, head, HEADS)
        rate, gate = tl.load(rates + head), tl.load(gates)
        powers += head * 4 * (CHUNK + 1)
        gate_grad, rate_grad, angle_grad = 0.0, 0.0, 0.0
        if lane < dilation:
            dtype = value.dtype.element_ty
            row, other_row = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None]
            lag = place[None] - place[:, None]
            local = _local(powers, sine, lag, CHUNK).to(dtype)
            # The state is the sum of rho^m dY over positions m from the end of the chunk.
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
                tl.store(value_grad + key * value_grad_t + column, back, mask=inside)
                within = tl.dot(read, tl.trans(given), within, input_precision="ieee")
                values = tl.dot(summing_values, read, input_precision="ieee")
                across = tl.dot(values, tl.trans(state), across, input_precision="ieee")
                state = tl.dot(onward, state, input_precision="ieee")
                state = tl.dot(summing, given, state, input_precision="ieee")
            # Rows and columns of `across` are Re, Im (0, 1) and their derivatives by the rate (2, 3).
            turns, slopes = row % 2 + other_row % 2, row // 2 + other_row // 2
            across = tl.where(turns == 2, -across, across)
            own, other = turns % 2 == sine, turns % 2 != sine
            gate_grad = tl.sum(within * _local(powers, sine, lag, CHUNK))
            gate_grad += tl.sum(tl.where((slopes == 0) & own, across, 0.0))
            slope = powers + 2 * (CHUNK + 1)
            rate_grad = tl.sum(within * _local(slope, sine, lag, CHUNK))
            rate_grad += tl.sum(tl.where((slopes == 1) & own, across, 0.0))
            angle_grad = tl.sum(within * _local(slope, 1 - sine, lag, CHUNK))
            angle_grad += tl.sum(tl.where((slopes == 1) & other, across, 0.0))
            rate_grad *= gate
            # The derivative of rho^k by the angle is i rate times the derivative by the rate.
            angle_grad *= gate * rate * tl.where(sine == 0, -1.0, 1.0)
        count = HEADS * tl.num_programs(2) * tl.num_programs(0)
        program = (head * tl.num_programs(2) + tl.program_id(2)) * tl.num_programs(0)
        parameter_grads += program + tl.program_id(0)
        tl.store(parameter_grads, gate_grad)
        tl.store(parameter_grads + count, rate_grad)
        tl.store(parameter_grads + 2 * count, angle_grad)


@triton.jit
def unmix(
    gradient,
    attended,
    gate,
    attended_grad,
    gate_grad,
    gradient_b,
    gradient_h,
    gradient_t,
    attended_b,
    attended_h,
    attended_t,
    attended_grad_b,
    attended_grad_h,
    attended_grad_t,
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
    attended_grad += batch * attended_grad_b + far_head * attended_grad_h
    given = tl.load(gradient + query * gradient_t + column, mask=there, other=0.0)
    if head >= HEADS:
        tl.store(attended_grad + query * attended_grad_t + column, given, mask=there)
    else:
        attended += batch * attended_b + far_head * attended_h
        seen = tl.load(attended + query * attended_t + column, mask=there, other=0.0)
        share = ((1 - tl.load(gate)) * given.to(tl.float32)).to(attended_grad.dtype.element_ty)
        tl.store(attended_grad + query * attended_grad_t + column, share, mask=there)
        program = (head * tl.num_programs(2) + tl.program_id(2)) * tl.num_programs(0)
        tl.store(gate_grad + program + tile, -tl.sum(given.to(tl.float32) * seen.to(tl.float32)))
