"""Bootstrap over units: what a unit is, that intervals cover, and that comparisons are paired."""

import numpy as np
import pytest

from holdover.evaluation import intervals
from holdover.evaluation.intervals import Resampled, units_of


def same(values):
    return values


def test_many_documents_are_the_units():
    documents = np.repeat(np.arange(0, 40, 2), 3)  # numbers may have gaps
    units, kind = units_of(documents, np.zeros_like(documents))
    assert kind == "documents"
    assert units.tolist() == np.repeat(np.arange(20), 3).tolist()


def test_few_documents_are_cut_into_blocks_that_never_cross_them():
    documents = np.array([0] * 45 + [7] * 25)
    windows = np.concatenate([np.arange(45), np.arange(25)])
    units, kind = units_of(documents, windows)
    assert kind == "blocks of 20 windows"
    assert np.bincount(units).tolist() == [20, 20, 5, 20, 5]
    assert units[44] == 2 and units[45] == 3
    units, kind = units_of(documents, windows, block=30)
    assert kind == "blocks of 30 windows" and np.bincount(units).tolist() == [30, 15, 25]


def test_order_of_targets_does_not_matter():
    documents, windows = np.repeat(np.arange(3), 50), np.tile(np.arange(50), 3)
    order = np.random.default_rng(0).permutation(150)
    units, _ = units_of(documents, windows)
    assert (units_of(documents[order], windows[order])[0] == units[order]).all()


def test_one_unit_has_a_value_and_no_interval():
    units, kind = units_of(np.zeros(5, int), np.arange(5))
    assert "too little for an interval" in kind
    resampled = Resampled(units)
    assert resampled.interval(np.array([6.0]), np.array([2.0]), same) == (3.0, None, None)


def test_value_is_a_ratio_of_sums_and_lies_inside():
    numerator, denominator = np.array([10.0, 1.0, 4.0]), np.array([10.0, 2.0, 2.0])
    value, low, high = Resampled(np.arange(3)).interval(numerator, denominator)
    assert value == pytest.approx(np.exp(15 / 14))
    # Every draw is a mean of the three ratios.
    assert np.exp(0.5) <= low < value < high <= np.exp(2)


def test_seed_decides_and_slices_do_not(monkeypatch):
    units = np.arange(50)
    values = np.random.default_rng(1).random(50)
    first = Resampled(units, seed=3).interval(values, np.ones(50))
    assert Resampled(units, seed=3).interval(values, np.ones(50)) == first
    assert Resampled(units, seed=4).interval(values, np.ones(50)) != first
    monkeypatch.setattr(intervals, "SLICE", 120)
    assert Resampled(units, seed=3).interval(values, np.ones(50)) == pytest.approx(first)


def test_differences_are_paired():
    """Units differ widely, the models always by the same: only pairing sees it."""
    random = np.random.default_rng(2)
    sizes = random.integers(50, 150, 40).astype(float)
    a = sizes * random.normal(3, 1, 40)
    b = a - 0.01 * sizes
    resampled = Resampled(np.arange(40))
    value, low, high = resampled.interval(a - b, sizes, same)
    assert (value, low, high) == pytest.approx((0.01, 0.01, 0.01))
    _, low, high = resampled.interval(a, sizes, same)
    assert high - low > 0.3


def test_interval_covers_the_truth_as_often_as_it_says():
    """Ratios over 40 units of unequal size, 200 times."""
    random = np.random.default_rng(0)
    resampled = Resampled(np.arange(40), draws=1000)
    covered = 0
    for _ in range(200):
        sizes = random.integers(20, 200, 40).astype(float)
        means = random.normal(3.0, 0.3, 40)  # units differ, targets within one share that
        _, low, high = resampled.interval(sizes * means, sizes)
        covered += low <= np.exp(3.0) <= high
    assert 0.90 <= covered / 200 <= 0.99


def test_per_unit_sums():
    resampled = Resampled(np.array([1, 0, 1, 1]))
    assert resampled.per_unit(np.array([1.0, 2.0, 3.0, 4.0])).tolist() == [2.0, 8.0]
    assert resampled.per_unit(np.ones(4, bool)).tolist() == [1.0, 3.0]


def test_draws_without_anything_to_divide_by_are_left_out():
    value, low, high = Resampled(np.arange(2)).interval(
        np.array([2.0, 0.0]), np.array([4.0, 0.0]), same
    )
    assert (value, low, high) == (0.5, 0.5, 0.5)


def test_many_units_stay_small():
    resampled = Resampled(np.arange(25_000), draws=100)
    assert all(taken.dtype == np.uint8 for taken in resampled._draws)
    assert max(taken.size for taken in resampled._draws) <= intervals.SLICE
    assert sum(int(taken.sum(dtype=np.int64)) for taken in resampled._draws) == 100 * 25_000


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: units_of(np.zeros(2, int), np.zeros(3, int)), "equally long"),
        (lambda: units_of(np.zeros(0, int), np.zeros(0, int)), "non-empty"),
        (lambda: units_of(np.array([-1]), np.array([0])), "count from 0"),
        (lambda: Resampled(np.array([0, 2])), "without gaps"),
        (lambda: Resampled(np.arange(3)).interval(np.ones(2), np.ones(3)), "3 units"),
        (lambda: Resampled(np.arange(3)).interval(np.ones(3), np.zeros(3)), "at least one"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(ValueError, match=said):
        call()
