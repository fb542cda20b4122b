"""The kernels of RSA's recurrence against its matrices: what they give, take and leave in memory.

Functions named interpreted_* run in a process of their own: see interpreted.py.
"""

import os

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from holdover.ops import rsa_ops
from holdover.ops.rem import Kernels, RecurrenceEncoding, make_kernels, rem
from holdover.ops.rsa import RSA, SoftmaxAttention, choose, rsa
from interpreted import run_interpreted
from kernels import ANGLES, KINDS, RATES, LargestTensor, draw, make

HEADS = len(KINDS)
OPERATORS = torch.ops.holdover


@pytest.mark.nightly
def test_as_interpreted():
    run_interpreted(__file__)


def test_a_sample_as_interpreted():
    run_interpreted(__file__, "half_precision or one_head")


@pytest.fixture(autouse=True)
def _kernels_serve_a_cpu(monkeypatch):
    if os.environ.get("TRITON_INTERPRET") == "1":
        monkeypatch.setattr(rsa_ops, "DEVICES", ("cpu",))


def case(queries, keys, heads=HEADS + 1, width=16, dtype=torch.float32, batch=2):
    """What was attended, and values, in the strides they have in a model."""
    shapes = ((queries, heads), (keys, heads))
    return [
        draw(batch, *shape, width, dtype=dtype, seed=seed).transpose(1, 2).requires_grad_()
        for seed, shape in enumerate(shapes)
    ]


def by_kernel(attended, value, kernel, gate, present=None):
    promised = rsa_ops.promise(kernel, value, gate, present, attended.shape[2])
    return rsa_ops.mix(attended, promised, kernel, value, gate, present)


def by_matrix(attended, value, kernel, gate, present=None):
    """In the precision of what it is given."""
    heads = len(kernel.dilations)
    value = value[:, :heads]
    if present is not None:
        value = value.masked_fill(~present[:, None, :, None], 0)
    recurrent = rem(kernel, attended.shape[2], value.shape[2]) @ value
    mixed = torch.lerp(attended[:, :heads], recurrent, gate)
    return torch.cat([mixed, attended[:, heads:]], 1)


def outcome(way, tensors, numbers, dilations, kinds=KINDS, present=None):
    """The mixture and the gradients of attended, value, rate, angle and gate."""
    leaves = [x.detach().requires_grad_() for x in (*tensors, *numbers)]
    attended, value, rate, angle, gate = leaves
    output = way(attended, value, make_kernels(rate, angle, kinds, dilations), gate, present)
    direction = draw(*output.shape, seed=9).to(output.dtype)
    return [output.detach(), *torch.autograd.grad(output, leaves, direction)]


def numbers(rates=RATES, angles=ANGLES, gate=0.3):
    return [torch.tensor(x) for x in (rates, angles, gate)]


def compare(tensors, given, dilations, tolerance=1e-5, **options):
    """By the kernel, and by matrices in double precision: differences as shares of the largest."""
    found = outcome(by_kernel, tensors, given, dilations, **options)
    exact = [[x.double() for x in group] for group in (tensors, given)]
    expected = outcome(by_matrix, *exact, dilations, **options)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= tolerance * other.abs().max().clamp(min=1)


@pytest.mark.parametrize(
    ("dilations", "queries", "memory", "masked"),
    [
        ((1, 1, 1, 1), 75, 0, False),
        ((1, 1, 1, 1), 75, 0, True),
        ((1, 2, 3, 5), 61, 50, True),
        ((3, 6, 9, 12), 130, 0, False),
        ((3, 6, 2, 17), 1, 40, True),
        ((2, 1, 4, 1), 40, 200, True),
    ],
)
def interpreted_the_mixture_and_its_gradients(dilations, queries, memory, masked):
    keys = memory + queries
    present = torch.rand(2, keys, generator=torch.Generator().manual_seed(3)) < 0.7
    compare(case(queries, keys), numbers(), dilations, present=present if masked else None)


@pytest.mark.parametrize("heads", [HEADS, HEADS + 3])
@pytest.mark.parametrize("width", [32, 64])
def interpreted_heads_and_widths(heads, width):
    compare(case(40, 50, heads, width, batch=1), numbers(), (1, 3, 2, 1))


def interpreted_one_head():
    compare(case(40, 50, 2), numbers((0.9,), (0.4,)), (2,), kinds=("sin",))


def interpreted_what_is_absent_may_be_anything():
    attended, value = case(30, 45)
    present = torch.ones(2, 45, dtype=torch.bool)
    present[1, :20] = False
    clean = outcome(by_kernel, (attended, value), numbers(), (1, 2, 3, 4), present=present)
    spoilt = value.detach().clone()
    spoilt[1, :, :20] = float("nan")
    found = outcome(by_kernel, (attended, spoilt), numbers(), (1, 2, 3, 4), present=present)
    for one, other in zip(found, clean, strict=True):
        assert torch.equal(one, other)
    assert (found[2][1, :, :20] == 0).all()


@pytest.mark.parametrize("rates", [(0.0, 0.999999), (-1e-30, 1e-30), (-0.999999, 0.5)])
def interpreted_the_edges(rates):
    """As test_rem's test of the same: at 0 the first step's gradient stays."""
    kinds, given = ("regular", "cos"), numbers(rates, (0.0, 0.3), 1.0)
    compare(case(100, 100, 2), given, (1, 2), 1e-4, kinds=kinds)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def interpreted_half_precision_is_near_single(dtype):
    tensors = case(150, 170, dtype=dtype)
    found = outcome(by_kernel, tensors, numbers(), (1, 2, 1, 3))
    expected = outcome(by_matrix, [x.float() for x in tensors], numbers(), (1, 2, 1, 3))
    assert [x.dtype for x in found] == [dtype] * 3 + [torch.float32] * 3
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() < 0.01 * other.abs().max()


def interpreted_gradients_are_the_same_every_time():
    runs = [outcome(by_kernel, case(60, 80), numbers(), (1, 2, 1, 3)) for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


def interpreted_layouts():
    """Rows that do not lie together, and a gradient that is one number."""
    attended, value = case(30, 40)
    kernel, gate = make(dtype=torch.float32), torch.tensor(0.4)
    expected = by_kernel(attended, value, kernel, gate)
    turned = [x.detach().transpose(2, 3).contiguous().transpose(2, 3) for x in (attended, value)]
    found = by_kernel(*(x.requires_grad_() for x in turned), kernel, gate)
    assert torch.equal(found, expected)
    found.sum().backward()
    expected.sum().backward()
    for one, other in zip(turned, (attended, value), strict=True):
        assert torch.equal(one.grad, other.grad)


def layer(computation="linear", **options) -> RSA:
    torch.manual_seed(0)
    counts = {"counts": (1, 1, 1, 1, 0, 1), "dilations": (3, 6)}
    return RSA(RecurrenceEncoding(**{"gate": 0.3, **counts, **options}), computation)


def inputs(queries, keys, heads=7, key_heads=7, dtype=torch.float32):
    sizes = ((heads, queries), (key_heads, keys), (key_heads, keys))
    return [
        draw(2, *size, 16, dtype=dtype, seed=seed).requires_grad_()
        for seed, size in enumerate(sizes)
    ]


def results(module, tensors, **options):
    output = module(*tensors, **options)
    wanted = (*tensors, *module.parameters())
    return [output, *torch.autograd.grad(output, wanted, draw(*output.shape).to(output.dtype))]


class Called(TorchDispatchMode):
    """The names of the operators, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name().split("::")[1].split(".")[0])
        return function(*args, **(kwargs or {}))

    def places(self, *names: str) -> list[int]:
        return [self.names.index(name) for name in names]


@pytest.mark.parametrize(("shared_by", "memory"), [(1, 33), (7, 0)])
def interpreted_the_computations_agree(shared_by, memory):
    tensors = inputs(60, 60 + memory, key_heads=7 // shared_by)
    present = torch.rand(2, 60 + memory, generator=torch.Generator().manual_seed(3)) < 0.8
    attention = SoftmaxAttention(bias=draw(2, 7, 60, 60 + memory, dtype=torch.float32))
    options = {"attention": attention, "present": present}
    with Called() as called:
        found = results(layer(), tensors, **options)
    assert "rsa_mix" in called.names
    for one, other in zip(found, results(layer("dense"), tensors, **options), strict=True):
        assert (one - other).abs().max() < 1e-5 * other.abs().max().clamp(min=1)


def interpreted_the_recurrences_backward_runs_after_the_attentions():
    """So that its gradient of the values does not lie beside what the attention's needs."""
    with Called() as called:
        results(layer(), inputs(40, 40), attention=matrix_attention)
    mixed, attended, recurrent = called.places(
        "rsa_mix_backward", "_softmax_backward_data", "rsa_recurrence_backward"
    )
    assert mixed < attended < recurrent


class Peak(TorchDispatchMode):
    """The most bytes that were held at a time, in what operators were given and gave."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves((args, output)):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.held[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.held = {key: held for key, held in self.held.items() if not held[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self.held.values()))
        return output


def interpreted_two_tensors_more_than_plain_attention():
    """At the peak of forward and backward."""
    peaks = {}
    for name, attend in (("plain", SoftmaxAttention()), ("linear", layer())):
        tensors = inputs(300, 300)
        gradient = torch.randn_like(tensors[0])
        with Peak() as peak:
            attend(*tensors).backward(gradient)
        peaks[name] = peak.bytes / gradient.nbytes
    # The rest is the powers, and the sums over programs.
    assert 2 <= peaks["linear"] - peaks["plain"] < 2.05


def matrix_attention(query, key, value):
    return (query @ key.transpose(2, 3)).softmax(-1) @ value


def interpreted_no_square_is_made():
    def nothing_attended(query, key, value):
        return torch.zeros_like(query)

    length = 250
    tensors = [torch.ones(1, 6, length, 16, requires_grad=True) for _ in range(3)]
    with LargestTensor() as seen:
        layer()(*tensors, nothing_attended).sum().backward()
    assert seen.elements == tensors[0].numel()


def interpreted_the_layer_compiles_whole():
    module, tensors = layer(), inputs(50, 70)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for one, other in zip(results(compiled, tensors), results(module, tensors), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def interpreted_autocast():
    """Values may come in single precision where the attention's product is in half."""
    module, tensors = layer(), inputs(50, 50)
    expected = results(module, tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module(*tensors)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), expected[0], rtol=0.03, atol=0.03)
    found.float().square().sum().backward()
    assert all(x.grad.dtype == x.dtype for x in (*tensors, *module.parameters()))


def interpreted_operators_are_as_torch_wants_them():
    attended, value = case(20, 25)
    kernel, gate = make((1, 2, 1, 3), torch.float32, grad=True), torch.tensor(0.4)
    gate.requires_grad_()
    present = torch.ones(2, 25, dtype=torch.bool)
    last = (kernel.dilations, kernel.sines)
    promised, powers = OPERATORS.rsa_promise(value, *kernel[:2], gate, present, 20, *last)
    promised, powers = promised.detach().clone().requires_grad_(), powers.detach()
    tests = {
        OPERATORS.rsa_promise: (value, *kernel[:2], gate, present, 20, *last),
        OPERATORS.rsa_mix: (attended, promised, powers, value, gate, present, *last),
        OPERATORS.rsa_mix_backward: (*(x.detach() for x in (attended, attended, gate)), HEADS),
        OPERATORS.rsa_recurrence_backward: (
            *(x.detach() for x in (attended[:, :HEADS], value, kernel.rate, powers, gate)),
            present,
            *last,
        ),
    }
    for operator, arguments in tests.items():
        utilities = ["test_schema", "test_faketensor", "test_autograd_registration"]
        torch.library.opcheck(operator.default, arguments, test_utils=utilities)


@pytest.fixture
def anywhere(monkeypatch):
    monkeypatch.setattr(rsa_ops, "HAS_TRITON", True)
    monkeypatch.setattr(rsa_ops, "DEVICES", ("cpu",))


def takes(width=16, dtype=torch.float32, kernel: Kernels | None = None, gate=0.0) -> bool:
    kernel = make(dtype=torch.float32) if kernel is None else kernel
    return rsa_ops.takes(kernel, torch.zeros(1, 4, 5, width, dtype=dtype), torch.tensor(gate))


def test_what_the_kernels_take(anywhere):
    assert takes() and takes(128) and takes(dtype=torch.bfloat16)
    for width in (8, 24, 80):
        assert not takes(width)
    assert not takes(dtype=torch.float64)
    assert not takes(kernel=make(dtype=torch.float64))
    for options in ({"truncate": 9}, {"masked": False}, {"keep_diagonal": True}):
        assert not takes(kernel=make(dtype=torch.float32, **options))


def test_without_triton_or_a_gpu_nothing_is_taken(monkeypatch):
    if os.environ.get("TRITON_INTERPRET") != "1":
        assert not takes()
    monkeypatch.setattr(rsa_ops, "DEVICES", ("cpu",))
    monkeypatch.setattr(rsa_ops, "HAS_TRITON", False)
    assert not takes()
    query, key, value = inputs(5, 5)
    rsa(query, key, value, layer().encoding(), torch.tensor(0.2), computation="linear")


def test_the_choice_of_the_fused_scan():
    cuda = torch.device("cuda")
    assert choose(64, cuda, fused=True) == "linear"
    assert choose(64, cuda) == "split"
    assert choose(8, cuda, fused=True) == "split"
