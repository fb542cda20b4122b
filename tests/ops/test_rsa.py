"""RSA attention: the loops, three computations that agree, composition with other attentions."""

import pytest
import torch

from holdover.ops.rem import RecurrenceEncoding, rem
from holdover.ops.rsa import RSA, SoftmaxAttention, choose, rsa
from holdover.ops.scan import scan
from kernels import LargestTensor, close, draw
from reference import rem as reference

COMPUTATIONS = ("dense", "split", "linear")
COUNTS = {"counts": (1, 1, 1, 1, 0, 1), "dilations": (3, 6)}
HEADS = 7


def make(**options) -> RecurrenceEncoding:
    torch.manual_seed(0)
    return RecurrenceEncoding(**{"gate": 0.3, **COUNTS, **options}).double()


def inputs(queries: int, keys: int, heads=HEADS, key_heads=HEADS, dtype=torch.float64):
    sizes = ((heads, queries), (key_heads, keys), (key_heads, keys))
    return [
        draw(2, *size, 4, dtype=dtype, seed=seed).requires_grad_()
        for seed, size in enumerate(sizes)
    ]


def run(encoding, tensors, computation, **options):
    return rsa(*tensors, encoding(), encoding.gate(), computation=computation, **options)


def gradients(output, encoding, *tensors):
    direction = draw(*output.shape, seed=9)
    return torch.autograd.grad(output, (*tensors, *encoding.parameters()), direction)


def biased(queries: int, keys: int) -> torch.Tensor:
    return draw(2, HEADS, queries, keys, seed=5).requires_grad_()


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize(("queries", "keys"), [(9, 9), (6, 14)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.quick_sampled(6)
def test_the_loops(computation, queries, keys, causal, with_bias):
    """Outputs and the gradients of queries, keys, values, bias and all parameters."""
    encoding = make(masked=causal, truncate=8)
    tensors = inputs(queries, keys)
    bias = biased(queries, keys) if with_bias else None
    found = run(encoding, tensors, computation, attention=SoftmaxAttention(causal, bias))
    kernel = encoding()
    heads = [
        reference.Head(*head, causal, 8)
        for head in zip(encoding.kinds, kernel.rate, kernel.angle, kernel.dilations, strict=True)
    ]
    expected = reference.rsa(*tensors, heads, encoding.mu, bias, causal)
    close(found, expected, 1e-9)
    wanted = (*tensors, bias) if with_bias else tensors
    for one, other in zip(
        gradients(found, encoding, *wanted), gradients(expected, encoding, *wanted), strict=True
    ):
        close(one, other, 1e-8)


@pytest.mark.parametrize(("queries", "memory"), [(130, 0), (70, 200), (1, 150)])
@pytest.mark.parametrize("options", [{}, {"truncate": 50}, {"masked": False}], ids=str)
@pytest.mark.parametrize("shared_by", [1, 7])
def test_the_computations_agree(queries, memory, options, shared_by):
    encoding = make(**options)
    keys = memory + queries
    tensors = inputs(queries, keys, key_heads=HEADS // shared_by)
    present = torch.rand(2, keys, generator=torch.Generator().manual_seed(3)) < 0.8
    attention = SoftmaxAttention(encoding.masked, biased(queries, keys))
    outputs = {
        computation: run(encoding, tensors, computation, attention=attention, present=present)
        for computation in COMPUTATIONS
    }
    wanted = (*tensors, attention.bias)
    expected = gradients(outputs["dense"], encoding, *wanted)
    for computation in ("split", "linear"):
        close(outputs[computation], outputs["dense"], 1e-9)
        for one, other in zip(
            gradients(outputs[computation], encoding, *wanted), expected, strict=True
        ):
            close(one, other, 1e-6)


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("memory", [0, 5])
def test_a_closed_gate_is_plain_attention(computation, memory):
    encoding = make(gate=float("-inf"))
    tensors = inputs(8, 8 + memory)
    close(run(encoding, tensors, computation), SoftmaxAttention()(*tensors), 1e-12)


@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_an_open_gate_is_the_recurrence_and_other_heads_are_plain(computation):
    encoding = make(gate=float("inf"))
    query, key, value = inputs(8, 12)
    found = run(encoding, (query, key, value), computation)
    heads = encoding.heads
    close(found[:, :heads], rem(encoding(), 8, 12) @ value[:, :heads])
    close(found[:, heads:], SoftmaxAttention()(query, key, value)[:, heads:])


@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_all_heads_may_have_a_recurrence(computation):
    encoding = make()
    tensors = inputs(6, 9, encoding.heads, encoding.heads)
    assert run(encoding, tensors, computation).shape == (2, encoding.heads, 6, 4)


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("memory", [0, 13])
def test_no_query_reads_the_future(computation, memory):
    encoding = make()
    query, key, value = inputs(20, 20 + memory)
    before = run(encoding, (query, key, value), computation)
    for changed in (0, 7, 19):
        other_key, other_value = key.detach().clone(), value.detach().clone()
        other_key[:, :, memory + changed] += 10
        other_value[:, :, memory + changed] += 10
        after = run(encoding, (query, other_key, other_value), computation)
        close(after[:, :, :changed], before[:, :, :changed], 1e-12)
        assert (after[:, :, changed:] != before[:, :, changed:]).any((0, 1, 3)).all()


@pytest.mark.parametrize("computation", ["split", "linear"])
def test_absent_keys_are_not_remembered(computation):
    """Rows whose memory is not filled yet read as if there were none, whatever stands there."""
    encoding = make()
    query, key, value = (tensor.detach() for tensor in inputs(10, 16))
    present = torch.ones(2, 16, dtype=torch.bool)
    present[1, :6] = False
    bias = present[:, None, None]
    value[1, :, :6] = 1e6
    attention = SoftmaxAttention(bias=bias)
    found = run(encoding, (query, key, value), computation, attention=attention, present=present)
    alone = run(encoding, (query, key[:, :, 6:], value[:, :, 6:]), computation)
    close(found[1], alone[1])


def test_dropout_falls_on_the_softmax_alone():
    encoding = make()
    tensors = inputs(8, 8)
    heads = encoding.heads
    for computation in COMPUTATIONS:
        torch.manual_seed(0)
        # All of the softmax is dropped.
        found = run(encoding, tensors, computation, attention=SoftmaxAttention(dropout=1.0))
        recurrent = encoding.gate() * scan(encoding(), tensors[2][:, :heads])
        close(found[:, :heads], recurrent)
        assert (found[:, heads:] == 0).all()


def test_any_attention_takes_the_place_of_softmax():
    def mean_of_all(query, key, value):
        return value.mean(2, keepdim=True).expand(-1, -1, query.shape[2], -1)

    encoding = make()
    tensors = inputs(5, 9)
    split, linear = (
        run(encoding, tensors, computation, attention=mean_of_all)
        for computation in ("split", "linear")
    )
    close(split, linear)
    close(split[:, encoding.heads :], mean_of_all(*tensors)[:, encoding.heads :])
    with pytest.raises(ValueError, match="needs an attention with a method weights"):
        run(encoding, tensors, "dense", attention=mean_of_all)


def test_an_unknown_computation_is_refused():
    with pytest.raises(ValueError, match="expected one of"):
        run(make(), inputs(5, 5), "sparse")


def test_the_choice_goes_by_length():
    for device in ("cpu", "cuda", "mps"):
        assert choose(16, torch.device(device)) == "split"
        assert choose(100_000, torch.device(device)) == "linear"
        assert choose(2_000, torch.device(device), queries=1) == "split"


def test_the_module_learns_and_chooses():
    encoding = RecurrenceEncoding((0, 0, 0, 0, 2, 2), (3, 6, 9, 12), gate=0.0)
    layer = RSA(encoding)
    tensors = inputs(40, 60, dtype=torch.float32)
    before = [parameter.clone() for parameter in layer.parameters()]
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    output = layer(*tensors)
    close(output, run(encoding, tensors, choose(60, torch.device("cpu"))))
    output.square().sum().backward()
    optimiser.step()
    assert sum(parameter.numel() for parameter in layer.parameters()) == 5
    for parameter, old in zip(layer.parameters(), before, strict=True):
        assert (parameter != old).all()


def test_the_recurrent_branch_makes_no_square():
    def nothing_attended(query, key, value):
        return torch.zeros_like(query)

    encoding = RecurrenceEncoding((0, 0, 0, 0, 2, 2), (3, 6, 9, 12))
    length = 2048
    tensors = [torch.ones(1, 4, length, 2, requires_grad=True) for _ in range(3)]
    counted = {}
    for computation in ("linear", "split"):
        with LargestTensor() as seen:
            run(encoding, tensors, computation, attention=nothing_attended).sum().backward()
        counted[computation] = seen.elements
    assert counted["linear"] < length**2 // 100
    assert counted["split"] >= length**2


@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_half_precision_is_near_single(computation):
    encoding = make().float()
    tensors = [tensor.float() for tensor in inputs(90, 120)]
    expected = run(encoding, tensors, "dense")
    found = run(encoding, [tensor.bfloat16() for tensor in tensors], computation)
    assert found.dtype == torch.bfloat16
    # A few roundings of the largest entries; which ones is the CPU's own.
    close(found.float(), expected, 2**-5)


def test_the_layer_compiles_whole():
    layer = RSA(make(), "linear")
    tensors = inputs(100, 150)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*tensors), layer(*tensors)
    close(found, expected)
    for one, other in zip(
        gradients(found, layer, *tensors), gradients(expected, layer, *tensors), strict=True
    ):
        close(one, other, 1e-8)


@pytest.mark.parametrize("computation", COMPUTATIONS)
def test_shapes_can_be_had_without_memory(computation):
    with torch.device("meta"):
        layer = RSA(RecurrenceEncoding((0, 0, 0, 0, 2, 2), (3, 6, 9, 12)), computation)
        tensors = [torch.empty(1, 8, 100, 4) for _ in range(3)]
    assert layer(*tensors).shape == (1, 8, 100, 4)
