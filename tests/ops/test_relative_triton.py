"""The kernels of relative attention against the formula, and where they are chosen.

Functions named interpreted_* run in a process of their own: see interpreted.py.
"""

import os

import pytest
import torch

from holdover.ops import relative_softmax
from holdover.ops.relative import ALIGNED, hidden_keys
from holdover.ops.relative_softmax import (
    PositionScores,
    RelativeSoftmax,
    kernel_fits,
    relative_attention,
)
from interpreted import run_interpreted
from tiny import attach, build, tokens

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SIDE = 16


@pytest.mark.nightly
def test_as_interpreted():
    run_interpreted(__file__)


def test_a_sample_as_interpreted():
    run_interpreted(__file__, "half_precision or later_tokens")


@pytest.fixture(autouse=True)
def _kernels_serve_a_cpu(monkeypatch):
    """Where they are interpreted, in tiles small enough that few positions fill several."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    monkeypatch.setattr(relative_softmax, "DEVICES", ("cpu",))
    sides = {"forward": (SIDE, SIDE), "keys": (SIDE, 2 * SIDE), "queries": (2 * SIDE, SIDE)}

    def tile(kernel, dtype, width):
        queries, keys = sides[kernel]
        return {"QUERIES": queries, "KEYS": keys, "num_warps": 4, "num_stages": 2}

    monkeypatch.setattr(relative_softmax, "tile", tile)


def case(length, keys, *, unseen=False, width=16, dtype=torch.float32, batch=2, heads=3):
    """Inputs in the strides they have in the model, and which keys hold nothing."""
    torch.manual_seed(length + keys)
    columns = -(-keys // ALIGNED) * ALIGNED + 1
    both = torch.randn(batch, keys, 2, heads, width, dtype=dtype)
    inputs = {
        "query": torch.randn(batch, length, heads, width, dtype=dtype).transpose(1, 2),
        "key": both[:, :, 0].transpose(1, 2),
        "value": both[:, :, 1].transpose(1, 2),
        "by_position": torch.randn(batch, length, heads, width, dtype=dtype) / 2,
        "positions": torch.randn(columns, heads, width, dtype=dtype) / 2,
    }
    absent = None
    if unseen:
        # A row without a past, whose last tokens are padding; a row that has all.
        absent = torch.zeros(batch, keys, dtype=torch.bool)
        absent[0, : keys - length + 3] = True
        absent[0, -5:] = True
    return {name: value.requires_grad_() for name, value in inputs.items()}, absent


def formula(query, key, value, by_position, positions, hidden):
    """One score after the other: no view, no product of all distances."""
    length, keys, columns = query.shape[2], key.shape[2], positions.shape[0]
    rows = []
    for i in range(length):
        distance = keys - length + i - torch.arange(keys)
        # `column_distances`: from `keys` down.
        place = positions[(keys - distance).clamp(max=columns - 1)]
        by_content = torch.einsum("bhd,bhjd->bhj", query[:, :, i], key) * query.shape[-1] ** -0.5
        by_distance = torch.einsum("bhd,jhd->bhj", by_position[:, i], place)
        scores = (by_content + by_distance).masked_fill(hidden[:, :, i], -torch.inf)
        rows.append(torch.einsum("bhj,bhjd->bhd", scores.softmax(-1), value))
    return torch.stack(rows, 2)


def kernel(query, key, value, by_position, positions, hidden, span, unseen):
    assert kernel_fits(query, key, value, by_position, positions)
    scores = PositionScores(by_position, positions, hidden, span, unseen)
    return RelativeSoftmax(scores)(query, key, value)


def outcome(attention, inputs, *given):
    out = attention(*inputs.values(), *given)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    return out, *torch.autograd.grad((out * weight).sum(), list(inputs.values()))


@pytest.mark.parametrize(
    ("length", "keys", "span", "unseen"),
    [
        (32, 32, None, True),
        (32, 64, None, False),
        (16, 64, None, True),
        # Neither queries nor keys nor columns fill a tile.
        (37, 37, None, False),
        (19, 42, None, True),
        (41, 70, None, True),
        # The span ends inside the memory, in the segment, at a query itself.
        (32, 64, 40, True),
        (37, 70, 9, False),
        (33, 33, 20, True),
        (20, 41, 1, False),
        (20, 41, 100, True),
    ],
)
def interpreted_it_is_the_formula(length, keys, span, unseen):
    """What is read and every gradient; of one head where the lengths are even, which is quicker."""
    inputs, absent = case(length, keys, unseen=unseen, heads=3 if length % 2 else 1)
    hidden = hidden_keys(length, keys, span, absent, torch.device("cpu"))
    exact = outcome(formula, inputs, hidden)
    found = outcome(kernel, inputs, hidden, span, absent)
    for mine, other in zip(found, exact, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)
        # A query that reads itself alone does so whatever the score.
        assert other.abs().max() > 0.1 or span == 1


@pytest.mark.parametrize("width", [16, 32, 64])
def interpreted_any_width(width):
    inputs, _ = case(20, 40, width=width)
    hidden = hidden_keys(20, 40, None, None, torch.device("cpu"))
    exact = outcome(formula, inputs, hidden)
    for mine, other in zip(outcome(kernel, inputs, hidden, None, None), exact, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def interpreted_half_precision(dtype):
    """Gradients have the inputs' precision, and their size but for rounding."""
    inputs, absent = case(37, 70, unseen=True, dtype=dtype)
    hidden = hidden_keys(37, 70, None, absent, torch.device("cpu"))
    precise = {name: value.detach().float().requires_grad_() for name, value in inputs.items()}
    exact = outcome(formula, precise, hidden)
    for mine, other in zip(outcome(kernel, inputs, hidden, None, absent), exact, strict=True):
        assert mine.dtype == dtype
        assert (mine.float() - other).norm() < 0.02 * other.norm()


def interpreted_what_is_not_read_has_no_gradient_and_changes_nothing():
    """Columns of the product that stand for no key, or for one too far: also where a row is longer than
    there are keys."""
    inputs, _ = case(37, 70)
    query, key, value = (inputs[name].detach() for name in ("query", "key", "value"))
    product = torch.randn(3, 2, 37, 75, requires_grad=True)
    column = torch.arange(75)
    row = torch.arange(37)[:, None]
    for span in (70, 20):
        unread = (column < 36 - row) | (column < 70 - span) | (column >= 70)
        out, _ = relative_attention(query, key, value, product, None, span)
        other = product.detach().masked_fill(unread, 1e4)
        assert torch.equal(relative_attention(query, key, value, other, None, span)[0], out)
        (gradient,) = torch.autograd.grad((out * torch.randn_like(out)).sum(), product)
        assert (gradient[..., unread] == 0).all()
        assert (gradient[..., ~unread] != 0).all()


def interpreted_later_tokens_change_nothing():
    inputs, _ = case(32, 48)
    given = {name: value.detach() for name, value in inputs.items()}
    hidden = hidden_keys(32, 48, None, None, torch.device("cpu"))
    before = kernel(*given.values(), hidden, None, None)
    for name in ("key", "value"):
        given[name] = given[name].clone()
        given[name][:, :, 30:] = 1e3
    after = kernel(*given.values(), hidden, None, None)
    assert torch.equal(after[:, :, :14], before[:, :, :14])
    assert not torch.equal(after[:, :, 14], before[:, :, 14])


def interpreted_gradients_of_any_strides():
    inputs, _ = case(20, 40)
    hidden = hidden_keys(20, 40, None, None, torch.device("cpu"))
    for attention, given in ((formula, ()), (kernel, (None, None))):
        out = attention(*inputs.values(), hidden, *given)
        # The gradient of a sum is one number, expanded.
        found = torch.autograd.grad(out.sum(), list(inputs.values()))
        if attention is formula:
            exact = found
    for mine, other in zip(found, exact, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


def interpreted_what_torch_asks_of_an_operation():
    """Schema, gradient, and what a compiler is told of shapes and strides."""
    inputs, absent = case(20, 40, unseen=True)
    product = torch.randn(3, 2, 20, 40, requires_grad=True)
    given = (inputs["query"], inputs["key"], inputs["value"], product, absent, 40)
    torch.library.opcheck(relative_attention, given)


# Dynamo warns of its own ways of tracing.
@pytest.mark.filterwarnings("default")
def interpreted_compiled_it_is_one_operation():
    torch._dynamo.reset()
    inputs, absent = case(20, 40, unseen=True)
    hidden = hidden_keys(20, 40, None, absent, torch.device("cpu"))
    compiled = torch.compile(kernel, fullgraph=True, dynamic=False, backend="aot_eager")
    expected = outcome(kernel, inputs, hidden, None, absent)
    for mine, other in zip(outcome(compiled, inputs, hidden, None, absent), expected, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


MODELS = {
    "same-length": {"same_length": True},
    "clamped": {"clamp_len": 9},
    "rsa": {"attention": "rsa", "rem_counts": (1, 0, 0, 1, 0, 0), "rem_dilations": (2,)},
    "blocks": {"recurrent_layers": [1], "state_vectors": 4},
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in MODELS), ("rsa", True)])
def interpreted_models_read_by_it(name, compiled, monkeypatch):
    """Loss and gradients of a ragged batch over two windows are those of torch's own attention."""
    torch._dynamo.reset()
    changes = MODELS[name]
    ids, mask = tokens(2, 40), torch.ones(2, 40, dtype=torch.long)
    mask[1, 33:] = 0
    found = []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(relative_softmax, "DEVICES", devices)
        calls = counted(monkeypatch)
        base = build("holdover_xl", n_layer=1, n_head=2, d_head=16, **changes)
        carry = "blocks" if "recurrent_layers" in changes else "memory"
        model = attach(base, window=20, carry=carry, memory_length=24)
        if compiled and devices:
            model.compile_step(backend="aot_eager")
        out = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))
        found.append((out.loss, *torch.autograd.grad(out.loss, list(model.parameters()))))
        assert len(calls) == (2 if devices else 0)
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


def counted(monkeypatch):
    """A list that grows with every start of the forward kernel."""
    from holdover.ops import relative_triton

    calls = []
    original = relative_triton.read

    class Counting:
        def __getitem__(self, grid):
            calls.append(grid)
            return original[grid]

    monkeypatch.setattr(relative_triton, "read", Counting())
    return calls


def test_where_it_fits(monkeypatch):
    inputs, _ = case(16, 24)
    given = [value.detach() for value in inputs.values()]
    assert not kernel_fits(*given)
    monkeypatch.setattr(relative_softmax, "DEVICES", ("cpu",))
    monkeypatch.setattr(relative_softmax, "HAS_TRITON", True)
    assert kernel_fits(*given)
    assert kernel_fits(*(value.bfloat16() for value in given))
    assert not kernel_fits(*(value.double() for value in given))
    assert not kernel_fits(*given[:-1], given[-1].bfloat16())
    for length, width in ((15, 16), (16, 24), (16, 8), (16, 256)):
        assert not kernel_fits(*case(length, 24, width=width)[0].values())
    monkeypatch.setattr(relative_softmax, "HAS_TRITON", False)
    assert not kernel_fits(*given)


@pytest.mark.parametrize("attention", ["relative", "rsa"])
def test_dropout_of_weights_is_left_to_torch(monkeypatch, attention):
    """The kernel knows none: a model that trains with it goes around, and comes back to evaluate."""
    calls = []

    def stand_in(query, key, value, product, unseen, span):
        calls.append(span)
        return torch.zeros_like(query), None

    monkeypatch.setattr(relative_softmax, "DEVICES", ("cpu",))
    monkeypatch.setattr(relative_softmax, "HAS_TRITON", True)
    monkeypatch.setattr(relative_softmax, "relative_attention", stand_in)
    rem = {"rem_counts": (1, 0, 0, 0, 0, 0), "rem_dilations": ()}
    base = build("holdover_xl", d_head=16, dropatt=0.1, attention=attention, **rem)
    base.train()(tokens(2, 20))
    assert calls == []
    base.eval()(tokens(2, 20))
    assert calls == [20] * base.config.n_layer


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("span", [None, 7])
def test_compiled_without_the_kernel_all_gradients_are_there(span, unseen):
    """With torch 2.11 those by position were not, until the mask was no longer written in place."""
    torch._dynamo.reset()
    inputs, absent = case(9, 21, unseen=unseen, dtype=torch.float64)
    hidden = hidden_keys(9, 21, span, absent, torch.device("cpu"))

    def attention(query, key, value, by_position, positions, hidden):
        scores = PositionScores(by_position, positions, hidden, span, absent)
        return RelativeSoftmax(scores)(query, key, value)

    compiled = torch.compile(attention, fullgraph=True, dynamic=False, backend="aot_eager")
    exact = outcome(formula, inputs, hidden)
    found = outcome(compiled, inputs, hidden)
    for mine, other in zip(found, exact, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-9)
