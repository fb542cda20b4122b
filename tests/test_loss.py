"""Cross-entropy without logits equals cross-entropy with them, gradients and all."""

import pytest
import torch

import holdover.loss
from holdover.loss import cross_entropy_sum, linear_cross_entropy

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("slice_length", [3, 7, 4096])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("trained", ["both", "hidden", "weight"])
def test_it_is_the_ordinary_loss(slice_length, bias, trained, monkeypatch):
    monkeypatch.setattr(holdover.loss, "SLICE", slice_length)
    torch.manual_seed(0)
    hidden = torch.randn(2, 9, 5, dtype=torch.float64, requires_grad=trained != "weight")
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=trained != "hidden")
    offset = (
        torch.randn(11, dtype=torch.float64, requires_grad=trained != "hidden") if bias else None
    )
    targets = torch.randint(0, 11, (2, 9))
    targets[0, :3] = -100
    inputs = [t for t in (hidden, weight, offset) if t is not None and t.requires_grad]
    ours = linear_cross_entropy(hidden, weight, offset, targets)
    theirs = cross_entropy_sum(torch.nn.functional.linear(hidden, weight, offset), targets)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    scale = torch.tensor(0.37, dtype=torch.float64)
    found = torch.autograd.grad(ours * scale, inputs)
    expected = torch.autograd.grad(theirs * scale, inputs)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_nothing_scored_is_no_loss():
    hidden = torch.randn(1, 4, 3, requires_grad=True)
    loss = linear_cross_entropy(hidden, torch.randn(5, 3), None, torch.full((1, 4), -100))
    assert loss == 0
    assert torch.autograd.grad(loss, hidden)[0].abs().sum() == 0


def test_half_precision_is_summed_in_single():
    torch.manual_seed(0)
    hidden, weight = torch.randn(1, 64, 16), torch.randn(50, 16)
    targets = torch.randint(0, 50, (1, 64))
    exact = linear_cross_entropy(hidden, weight, None, targets)
    half = linear_cross_entropy(hidden.bfloat16(), weight.bfloat16(), None, targets)
    assert half.dtype == torch.float32
    assert abs(half - exact) / exact < 0.01
