"""Recurrence encoding matrices against loops over i and j, and every way to compute P V against them."""

import itertools
import math
import random

import pytest
import torch

from holdover.ops import scan as scan_module
from holdover.ops.rem import Kernels, RecurrenceEncoding, lag_weights, make_kernels, rem
from holdover.ops.scan import convolve, empty_state, scan, scan_on, step
from kernels import KINDS, LargestTensor, close, draw, make
from reference.rem import Head, linear_rnn, matrix

PUBLISHED = {"counts": (0, 0, 0, 0, 2, 2), "dilations": (3, 6, 9, 12)}
# One cycle for all heads, a common divisor, none and a long cycle, one beyond the length.
DILATIONS = [(1, 1, 1, 1), (3, 6, 9, 12), (5, 7, 11, 13), (1, 2, 70, 300)]


def reference(kernel: Kernels, queries: int, keys: int) -> torch.Tensor:
    heads = [
        Head(kind, rate, angle, d, kernel.masked, kernel.truncate, kernel.keep_diagonal)
        for kind, rate, angle, d in zip(
            KINDS, kernel.rate, kernel.angle, kernel.dilations, strict=True
        )
    ]
    return torch.stack([matrix(head, queries, keys) for head in heads])


OPTIONS = [
    {"masked": masked, "truncate": truncate, "keep_diagonal": diagonal}
    for masked, truncate, diagonal in itertools.product((True, False), (None, 1, 7), (False, True))
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dilations", [(1, 1, 1, 1), (3, 6, 2, 12)], ids=str)
@pytest.mark.parametrize(("queries", "memory"), [(9, 0), (5, 8), (1, 13)])
@pytest.mark.quick_sampled(4)
def test_matrices_are_the_loops(options, dilations, queries, memory):
    kernel = make(dilations, grad=True, **options)
    found = rem(kernel, queries, memory + queries)
    expected = reference(kernel, queries, memory + queries)
    close(found, expected)
    direction = draw(*found.shape)
    parameters = (kernel.rate, kernel.angle)
    # The loops do not touch a parameter of which no weight lies within reach.
    gradients = [
        torch.autograd.grad((x * direction).sum() + 0 * sum(parameters).sum(), parameters)
        for x in (found, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        close(one, other)


def test_memory_rows_are_the_bottom_rows_of_the_square():
    kernel = make((3, 1, 2, 5))
    assert torch.equal(rem(kernel, 6, 20), rem(kernel, 20)[:, -6:])


def test_rows_are_gathered_per_batch_row_and_head():
    kernel = make((1, 2, 3, 4), truncate=9)
    rows = torch.randint(0, 11, (3, 4, 5), generator=torch.Generator().manual_seed(1))
    whole = rem(kernel, 11, 17)
    found = rem(kernel, 11, 17, rows)
    for b, h, u in itertools.product(range(3), range(4), range(5)):
        close(found[b, h, u], whole[h, rows[b, h, u]])


@pytest.mark.parametrize("dilation", [2, 3, 5])
def test_dilated_is_the_kronecker_product_with_the_identity(dilation):
    plain = rem(make(), 8)
    identity = torch.eye(dilation, dtype=torch.float64)
    expected = torch.stack([torch.kron(head, identity) for head in plain])
    length = 8 * dilation - 1
    close(rem(make((dilation,) * 4), length), expected[:, :length, :length])


def test_unmasked_is_the_sum_with_the_transpose():
    masked = rem(make((1, 2, 3, 4)), 15)
    close(rem(make((1, 2, 3, 4), masked=False), 15), masked + masked.transpose(1, 2))


def test_weights_depend_on_the_query_and_vanish_where_they_must():
    """The published reproduction had one row for all queries, and weight 1 where there is none."""
    kernel = make((3, 6, 9, 12), truncate=200)
    found = rem(kernel, 512, 1024)
    lag = torch.arange(512)[:, None] + 512 - torch.arange(1024)
    assert not torch.allclose(found[:, 100], found[:, 101])
    for head, dilation in zip(found, kernel.dilations, strict=True):
        none = (lag % dilation != 0) | (lag < 1) | (lag > 200)
        assert (head[none] == 0).all()
        assert (head[~none] != 0).all()
        # A row is the one above it, one to the right.
        assert torch.equal(head[1:, 1:], head[:-1, :-1])


@pytest.mark.parametrize("dilations", DILATIONS, ids=str)
def test_row_sums_are_bounded(dilations):
    kernel = make(dilations, masked=True)
    sums = rem(kernel, 400).abs().sum(-1).amax(-1)
    size = kernel.rate.abs()
    assert (sums <= size / (1 - size) + 1e-12).all()
    both = rem(make(dilations, masked=False), 400).abs().sum(-1).amax(-1)
    assert (both <= 2 * size / (1 - size) + 1e-12).all()


@pytest.mark.parametrize("way", [scan, convolve], ids=lambda way: way.__name__)
@pytest.mark.parametrize("options", [*OPTIONS, {"truncate": 200}], ids=str)
@pytest.mark.parametrize("dilations", DILATIONS, ids=str)
@pytest.mark.sampled(2)
def test_every_way_is_the_product_with_the_matrix(way, options, dilations):
    for queries, memory in ((1, 0), (1, 40), (77, 0), (200, 250), (390, 1)):
        kernel = make(dilations, grad=True, **options)
        values = draw(2, 4, memory + queries, 3).requires_grad_()
        inputs = (values, kernel.rate, kernel.angle)
        direction = draw(2, 4, queries, 3, seed=1)
        expected = rem(kernel, queries, memory + queries) @ values
        found = way(kernel, values, queries)
        close(found, expected)
        for one, other in zip(
            torch.autograd.grad(found, inputs, direction),
            torch.autograd.grad(expected, inputs, direction),
            strict=True,
        ):
            close(one, other, 1e-8)


def test_groups_of_chunks_change_nothing(monkeypatch):
    kernel = make((1, 2, 1, 2), grad=True)
    values = draw(2, 4, 150, 3)
    expected = torch.autograd.grad((rem(kernel, 150) @ values).square().sum(), kernel[:2])
    whole = rem(kernel, 150) @ values
    monkeypatch.setattr(scan_module, "CHUNK", 4)
    monkeypatch.setattr(scan_module, "CHUNKS_AT_ONCE", 3)
    found = scan(kernel, values)
    close(found, whole)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), kernel[:2]), expected, strict=True
    ):
        close(one, other, 1e-8)


@pytest.mark.parametrize("options", [{}, {"truncate": 4}, {"masked": False}], ids=str)
def test_gradcheck(options):
    def product(values, rate, angle):
        return scan(make_kernels(rate, angle, KINDS, (2, 4, 2, 6), **options), values, 9)

    kernel = make((2, 4, 2, 6), grad=True)
    values = draw(1, 4, 14, 2).requires_grad_()
    assert torch.autograd.gradcheck(product, (values, kernel.rate, kernel.angle))


@pytest.mark.parametrize("dilations", [(1, 1), (2, 4)])
def test_gradients_are_finite_at_the_edges(dilations):
    """At lambda = 0 and next to 1, and where all powers underflow."""
    for rates in ((0.0, 0.999999), (-1e-30, 1e-30), (-0.999999, 0.5)):
        for product in (lambda k, v: rem(k, 700) @ v, scan):
            rate = torch.tensor(rates, requires_grad=True)
            angle = torch.tensor([0.0, 0.3], requires_grad=True)
            values = torch.ones(1, 2, 700, 1, requires_grad=True)
            output = product(make_kernels(rate, angle, ("regular", "cos"), dilations), values)
            output.sum().backward()
            for tensor in (output, rate.grad, angle.grad, values.grad):
                assert torch.isfinite(tensor).all()
            if rates[0] == 0:
                # d/d lambda of the sum of lambda v at lag d.
                assert rate.grad[0] == 700 - dilations[0]


def test_long_sequences_are_stable_in_float32():
    kernel = make((1, 3, 2, 6), torch.float32)._replace(
        rate=torch.tensor([0.999, -0.99, 0.9999, 0.3])
    )
    values = draw(1, 4, 30_000, 1, dtype=torch.float32)
    precise = kernel._replace(rate=kernel.rate.double(), angle=kernel.angle.double())
    expected = convolve(precise, values.double())
    error = (scan(kernel, values) - expected).abs().amax((0, 2, 3))
    assert (error / expected.abs().amax((0, 2, 3)) < 1e-4).all()


@pytest.mark.parametrize("truncate", [None, 3, 10, 40])
@pytest.mark.parametrize("dilations", DILATIONS[:3], ids=str)
def test_streaming_is_the_whole(dilations, truncate):
    kernel = make(dilations, truncate=truncate)
    values = draw(2, 4, 90, 3)
    whole = scan(kernel, values)
    state = empty_state(kernel, values)
    outputs = []
    for position in range(40):
        output, state = step(kernel, values[:, :, position : position + 1], state)
        outputs.append(output)
    for start, end in ((40, 41), (41, 75), (75, 88)):
        output, state = scan_on(kernel, values[:, :, start:end], state)
        outputs.append(output)
    for position in (88, 89):
        output, state = step(kernel, values[:, :, position : position + 1], state)
        outputs.append(output)
    close(torch.cat(outputs, 2), whole)
    for one, other in zip(state, scan_on(kernel, values)[1], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            close(one, other)


def test_a_states_gradient_is_the_wholes():
    kernel = make((2, 4, 2, 6), grad=True)
    values = draw(1, 4, 50, 2).requires_grad_()
    inputs = (values, kernel.rate, kernel.angle)
    first, state = scan_on(kernel, values[:, :, :23])
    second, _ = scan_on(kernel, values[:, :, 23:], state)
    found = torch.autograd.grad(torch.cat([first, second], 2).square().sum(), inputs)
    expected = torch.autograd.grad(scan(kernel, values).square().sum(), inputs)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-8)


@pytest.mark.parametrize("options", [{"masked": False}, {"keep_diagonal": True}], ids=str)
def test_what_cannot_stream_is_refused(options):
    with pytest.raises(ValueError, match="streaming needs a masked kernel with a zero diagonal"):
        scan_on(make(**options), draw(1, 4, 5, 2))


@pytest.mark.parametrize("seed", range(25))
def test_nothing_reads_the_present_or_the_future(seed):
    """Over random lengths, memories, dilations and truncations, in every way to compute."""
    choose = random.Random(seed)
    queries, memory = choose.randint(1, 150), choose.randint(0, 150)
    dilations = tuple(choose.randint(1, 20) for _ in KINDS)
    kernel = make(dilations, truncate=choose.choice([None, choose.randint(1, 100)]))
    length = memory + queries
    changed = choose.randint(0, length - 1)
    values = draw(1, 4, length, 2, seed=seed)
    others = values.clone()
    others[:, :, changed] += 100
    row = changed - memory
    for way in (scan, lambda k, v, n: rem(k, n, v.shape[2]) @ v):
        before, after = way(kernel, values, queries), way(kernel, others, queries)
        # Rows up to and with the changed position; exactly, not nearly.
        assert torch.equal(before[:, :, : max(row + 1, 0)], after[:, :, : max(row + 1, 0)])
        lag = torch.arange(queries) - row
        moved = (before - after).abs().amax((0, 3)) > 1e-9
        expected = lag_weights(kernel, lag[None])[:, 0].abs() > 1e-11
        assert torch.equal(moved, expected)


def test_a_linear_rnn_is_the_sum_of_its_heads():
    """h_t = W_x x_t + sum over eigenvalues; real ones are regular heads, pairs a cos and a sin head."""
    width, length = 7, 60
    generator = torch.Generator().manual_seed(3)
    blocks = torch.zeros(width, width, dtype=torch.float64)
    blocks[0, 0], blocks[1, 1], blocks[2, 2] = 0.9, -0.7, 0.4
    for start, (size, angle) in zip((3, 5), ((0.95, 0.5), (0.8, 2.0)), strict=True):
        turn = torch.tensor(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
            dtype=torch.float64,
        )
        blocks[start : start + 2, start : start + 2] = size * turn
    basis = torch.randn(width, width, dtype=torch.float64, generator=generator)
    recurrent = basis @ blocks @ torch.linalg.inv(basis)
    inputs, sequence = draw(width, 4), draw(length, 4, seed=1)

    eigenvalues, right = torch.linalg.eig(recurrent)
    left = torch.linalg.inv(right)
    rates, angles, kinds, maps = [], [], [], []
    for index, value in enumerate(eigenvalues):
        projection = torch.outer(right[:, index], left[index])
        if abs(value.imag) < 1e-12:
            rates.append(value.real)
            angles.append(torch.zeros_like(value.real))
            kinds.append("regular")
            maps.append(projection.real)
        elif value.imag > 0:
            rates += [value.abs()] * 2
            angles += [value.angle()] * 2
            kinds += ["cos", "sin"]
            maps += [2 * projection.real, -2 * projection.imag]
    assert sorted(kinds) == ["cos"] * 2 + ["regular"] * 3 + ["sin"] * 2
    kernel = make_kernels(torch.stack(rates), torch.stack(angles), kinds, (1,) * len(kinds))
    values = torch.stack([sequence @ (head @ inputs).T for head in maps])[None]
    expected = linear_rnn(recurrent, inputs, sequence)
    for found in (scan(kernel, values), rem(kernel, length) @ values):
        close(sequence @ inputs.T + found.sum(1)[0], expected)


def largest(product, length: int, **options) -> int:
    kernel = make((3, 6, 9, 12), torch.float32, grad=True, **options)
    values = torch.ones(1, 4, length, 2, requires_grad=True)
    with LargestTensor() as seen:
        product(kernel, values).sum().backward()
    return seen.elements


@pytest.mark.parametrize("options", [{}, {"truncate": 200}, {"masked": False}], ids=str)
def test_the_scan_makes_no_square_and_grows_linearly(options):
    length = 2048
    elements = largest(scan, length, **options)
    assert elements < length**2 // 100
    assert largest(scan, 4 * length, **options) < 4.2 * elements
    assert largest(lambda k, v: rem(k, length) @ v, length, **options) >= length**2


@pytest.mark.parametrize("options", [{}, {"truncate": 20}], ids=str)
def test_half_precision_is_near_single(options):
    kernel = make((3, 6, 9, 12), torch.float32, grad=True, **options)
    values = draw(2, 4, 500, 8, dtype=torch.float32).requires_grad_()
    half = values.detach().bfloat16().requires_grad_()
    expected, found = scan(kernel, values, 300), scan(kernel, half, 300)
    assert found.dtype == torch.bfloat16
    scale = expected.std()
    assert (found - expected).abs().max() < 0.03 * scale
    inputs = (kernel.rate, kernel.angle)
    expected = torch.autograd.grad(expected.square().mean(), (values, *inputs))
    found = torch.autograd.grad(found.float().square().mean(), (half, *inputs))
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 0.03 * other.abs().max()


def test_autocast_leaves_the_recurrence_alone():
    kernel, values = make((2, 4, 2, 6), torch.float32), draw(1, 4, 300, 4, dtype=torch.float32)
    expected = scan(kernel, values)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scan(kernel, values), expected)


@pytest.mark.parametrize("truncate", [None, 30])
def test_the_scan_compiles_whole(truncate):
    """The graph is captured in one piece; what a compiler makes of it is the compiler's."""
    kernel = make((3, 6, 9, 12), grad=True, truncate=truncate)
    values = draw(1, 4, 300, 2).requires_grad_()
    inputs = (values, kernel.rate, kernel.angle)
    found = torch.compile(scan, fullgraph=True, backend="aot_eager")(kernel, values, 200)
    expected = scan(kernel, values, 200)
    close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        close(one, other, 1e-8)


def parameters(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_five_parameters_a_layer():
    layers = torch.nn.ModuleList(RecurrenceEncoding(**PUBLISHED) for _ in range(14))
    assert parameters(layers[0]) == 5
    assert parameters(layers) == 70
    assert set(layers[0].state_dict()) == {"nu", "theta", "mu"}


@pytest.mark.parametrize(
    ("counts", "dilations", "count"),
    [
        ((4, 0, 0, 4, 0, 0), (2, 3, 4, 5), 9),
        ((0, 2, 2, 2, 1, 1), (2, 3, 4, 4), 9),
        ((1, 2, 1, 0, 0, 1), (7,), 8),
    ],
)
def test_heads_and_parameters_of_other_counts(counts, dilations, count):
    encoding = RecurrenceEncoding(counts, dilations)
    kernel = encoding()
    assert encoding.heads == len(kernel.rate) == sum(counts)
    assert parameters(encoding) == count
    assert kernel.dilations == (1,) * sum(counts[:3]) + dilations
    assert kernel.sine.sum() == counts[2] + counts[5]


def test_pairs_share_their_rate_and_angle():
    kernel = RecurrenceEncoding(**PUBLISHED)()
    assert kernel.sine.tolist() == [False, True, False, True]
    assert kernel.rate[0] == kernel.rate[1] != kernel.rate[2] == kernel.rate[3]
    assert kernel.dilations == (3, 6, 9, 12)


def test_first_values():
    encoding = RecurrenceEncoding((4, 2, 2, 0, 0, 0), gate=(-3, 3))
    assert encoding.eta.tolist() == [-1.75, -1.25, 1.25, 1.75]
    assert ((encoding.nu >= 1) & (encoding.nu <= 2)).all()
    assert (encoding.theta == math.pi / 4).all()
    assert -3 <= encoding.mu <= 3
    assert RecurrenceEncoding((1, 0, 0, 0, 0, 0)).mu == -3
    assert RecurrenceEncoding((1, 0, 0, 0, 0, 0), gate=0.5).mu == 0.5


def test_all_parameters_learn():
    encoding = RecurrenceEncoding((2, 1, 1, 1, 1, 1), (3, 6, 12), gate=0.0)
    before = {name: value.clone() for name, value in encoding.state_dict().items()}
    optimiser = torch.optim.Adam(encoding.parameters(), 0.01)
    values = draw(1, encoding.heads, 50, 2, dtype=torch.float32)
    (encoding.gate() * scan(encoding(), values)).square().sum().backward()
    assert all((value.grad != 0).all() for value in encoding.parameters())
    optimiser.step()
    for name, value in encoding.state_dict().items():
        assert (value != before[name]).all(), name


def test_half_precision_parameters_make_single_precision_kernels():
    encoding = RecurrenceEncoding(**PUBLISHED).bfloat16()
    assert encoding().rate.dtype == encoding.gate().dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"counts": (1, 2)}, "six numbers of heads"),
        ({"counts": (0,) * 6}, "not all 0"),
        ({"counts": (0, 0, 0, 1, 0, 0)}, "each of the 1 dilated heads"),
        (
            {"counts": (0, 0, 0, 1, 0, 0), "dilations": (0,)},
            "at least 1 for each of the 1 dilated heads",
        ),
        ({"counts": (1, 0, 0, 0, 0, 0), "truncate": 0}, "longest lag to keep"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        RecurrenceEncoding(**options)
