"""The loop itself, with a recurrent step small enough to check by hand."""

from dataclasses import dataclass

import pytest
import torch

from holdover import Recompute, State
from holdover.unrolling import unroll

pytestmark = pytest.mark.quick


@dataclass(frozen=True)
class Number:
    value: torch.Tensor  # [B]
    begins: torch.Tensor | None = None


def step(window, state):
    """s' = 2 s + x"""
    before = torch.zeros_like(window.value) if state is None else state.tensors["sum"]
    after = 2 * before + window.value
    return after, State({"sum": after})


def numbers(*values):
    return [Number(torch.tensor([value], requires_grad=True)) for value in values]


@pytest.mark.parametrize("mode", ["none", "window", "auto"])
def test_it_is_a_recurrence(mode):
    windows = numbers(1.0, 2.0, 3.0)
    outputs = [out.item() for out, _ in unroll(step, windows, recompute=Recompute(mode))]
    assert outputs == [1.0, 4.0, 11.0]


@pytest.mark.parametrize("mode", ["none", "window"])
@pytest.mark.parametrize(
    ("horizon", "slopes"),
    [
        (None, [16, 8, 4, 2, 1]),
        (1, [0, 0, 0, 0, 1]),
        (2, [0, 0, 0, 0, 1]),
        (3, [0, 0, 0, 2, 1]),
        (4, [0, 0, 0, 0, 1]),
        (5, [16, 8, 4, 2, 1]),
    ],
)
def test_the_state_is_cut_before_every_multiple_of_the_horizon(mode, horizon, slopes):
    windows = numbers(1.0, 1.0, 1.0, 1.0, 1.0)
    *_, (last, _) = unroll(step, windows, horizon=horizon, recompute=Recompute(mode))
    values = [window.value for window in windows]
    found = torch.autograd.grad(last.sum(), values, allow_unused=True)
    assert [0 if slope is None else slope.item() for slope in found] == slopes


def test_a_given_state_is_not_cut_at_the_first_window():
    start = torch.tensor([1.0], requires_grad=True)
    *_, (last, _) = unroll(step, numbers(1.0, 1.0), State({"sum": start}), horizon=2)
    assert torch.autograd.grad(last.sum(), start)[0].item() == 4


def test_rows_begin_anew_on_their_own():
    first = Number(torch.tensor([1.0, 1.0]))
    second = Number(torch.tensor([1.0, 1.0]), begins=torch.tensor([True, False]))
    *_, (_, state) = unroll(step, [first, second])
    assert state.tensors["sum"].tolist() == [1.0, 3.0]


def test_recomputing_draws_the_same_random_numbers():
    def noisy(window, state):
        out, after = step(window, state)
        dropped = torch.nn.functional.dropout(after.tensors["sum"].repeat(50).sin(), 0.5)
        return dropped.sum() + 0 * out, after

    found = []
    for mode in ("none", "window"):
        torch.manual_seed(0)
        windows = numbers(1.0, 2.0, 3.0)
        total = sum(out.sum() for out, _ in unroll(noisy, windows, recompute=Recompute(mode)))
        found.append(torch.autograd.grad(total, [w.value for w in windows]))
    for plain, again in zip(*found, strict=True):
        assert torch.equal(plain, again)
