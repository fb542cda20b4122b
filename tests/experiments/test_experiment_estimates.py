"""Estimates from records, and verdicts on claims."""

import math

import numpy as np
import pytest

from holdover.experiments.definition import Expectation, Value
from holdover.experiments.estimates import estimate, outcome, verdict
from holdover.experiments.measures import in_units
from holdover.experiments.records import Records


def records(**arms):
    """Arms with the measures of their seeds."""
    found = {}
    for arm, measures in arms.items():
        for seed, measure in enumerate(measures):
            name = f"{arm}-seed{seed}"
            found[name] = {"run": name, "arm": arm, "seed": seed, "measures": {"m": measure}}
    return Records(None, found)


def units(sums, counts=(10, 10, 10), times=3):
    """Three kinds of documents, each of them several times."""
    kept = {"sums": list(sums) * times, "counts": list(counts) * times}
    value = sum(sums) / sum(counts)
    return {"value": value, "over": f"{len(kept['sums'])} documents", **kept}


def test_of_several_seeds_students_t():
    found = estimate(Value("m", "a", form="{:+.2f}"), records(a=[1.0, 2.0, 4.0]))
    half = 4.302652729749464 * np.std([1, 2, 4], ddof=1) / math.sqrt(3)
    assert found.value == pytest.approx(7 / 3)
    assert found.low == pytest.approx(7 / 3 - half) and found.high == pytest.approx(7 / 3 + half)
    assert found.over == "3 seeds" and found.sources == ("a-seed0", "a-seed1", "a-seed2")


def test_intervals_hold_nothing_that_cannot_be():
    seeds = records(a=[0.7, 0.9, 1.0], b=[0.2, 0.5, 0.9], spread=[0.1, 0.9, 0.9])
    found = estimate(Value("m", "a", share=True), seeds)
    assert 0 < found.low < 0.7 and found.high == 1
    assert estimate(Value("m", "a"), seeds).high > 1
    assert estimate(Value("m", "spread"), seeds).low == 0
    # Differences go both ways, and so do values whose form has a sign.
    assert estimate(Value("m", "b", "a"), seeds).low < -0.5
    assert estimate(Value("m", "spread", form="{:+.1f}"), seeds).low < 0


def test_an_interval_holds_its_value_whatever_the_form_says():
    for values in ([-2.0, -2.1, -2.3], [0.1, 0.2, -0.1], [1.5, 1.4, 1.7]):
        found = estimate(Value("m", "a", share=True), records(a=values))
        assert found.low < min(values) and found.high > max(values)


def test_differences_of_seeds_are_paired():
    found = estimate(Value("m", "a", "b"), records(a=[1.0, 5.0, 9.0], b=[1.5, 5.6, 9.4]))
    assert found.value == pytest.approx(-0.5)
    assert found.high < -0.2 and found.over == "3 seeds"
    # A seed that one of the arms lacks is not paired.
    found = estimate(Value("m", "a", "b"), records(a=[1.0, 5.0, 9.0], b=[1.5, 5.6]))
    assert found.value == pytest.approx(-0.55) and found.over == "2 seeds"
    # Two seeds give no interval: Student's t would be twelve times as wide as their distance.
    assert found.low is found.high is None


def test_two_seeds_are_as_sure_as_their_text_is_long():
    one, two = units([9.0, 11.0, 10.0]), units([9.5, 11.5, 10.0])
    base, second = units([10.0, 12.0, 11.1]), units([10.5, 12.4, 11.0])
    few = records(a=[one, two], b=[base, second], once=[one], bare=[1.0, 2.0])
    found = estimate(Value("m", "a", "b"), few)
    assert (
        found.value == pytest.approx(-0.1, abs=0.002)
        and found.over == "2 seeds, 9 documents, paired"
    )
    # All seeds and documents agree.
    assert -0.11 < found.low <= found.value <= found.high < -0.09
    alone = estimate(Value("m", "a"), few)
    assert alone.value == pytest.approx((one["value"] + two["value"]) / 2)
    assert alone.low < alone.value < alone.high
    assert alone.over == "2 seeds, 9 documents"
    # A loss has units and no interval of its own.
    once = estimate(Value("m", "once"), few)
    assert once.low < once.value < once.high and once.over == "one seed, 9 documents"
    bare = estimate(Value("m", "bare"), few)
    assert (bare.value, bare.low, bare.over) == (1.5, None, "2 seeds")


def test_one_seed_has_the_interval_of_its_own_units():
    measure = {"value": 3.0, "low": 2.0, "high": 4.0, "over": "22 documents"}
    found = estimate(Value("m", "a"), records(a=[measure]))
    assert (found.value, found.low, found.high) == (3.0, 2.0, 4.0)
    assert found.over == "one seed, 22 documents"
    assert estimate(Value("m", "a"), records(a=[3.0])).low is None


def test_one_seed_is_compared_unit_by_unit():
    ours, theirs = units([10, 50, 90]), units([12, 53, 92.5])
    found = estimate(Value("m", "a", "b"), records(a=[ours], b=[theirs]))
    assert found.value == pytest.approx(-7.5 / 30)
    # The units differ by far more than the arms: only pairs show the difference.
    assert -0.29 < found.low < -0.26 and -0.24 < found.high < -0.21
    other = units([12, 53, 92.5], counts=(10, 11, 10))
    assert estimate(Value("m", "a", "b"), records(a=[ours], b=[other])).low is None


def test_many_units_are_joined_and_nothing_is_lost():
    few = in_units([1.5, 2.5], [10, 20])
    assert few == {"sums": [1.5, 2.5], "counts": [10, 20]}
    sums, counts = np.arange(701.0), np.full(701, 10)
    many = in_units(sums.tolist(), counts.tolist())
    assert len(many["sums"]) == len(many["counts"]) == 234 and many["joined"] == 3
    assert many["sums"][:2] == [3.0, 12.0] and many["counts"][-1] == 20
    assert sum(many["sums"]) == sums.sum() and sum(many["counts"]) == counts.sum()
    measures = [{"value": 1.0, "over": "701 blocks", **many}, {"value": 2.0, "over": "", **many}]
    found = estimate(Value("m", "a", "b"), records(a=measures[:1], b=measures[1:]))
    assert found.over == "one seed, 701 blocks, 3 at a time, paired"


def test_measures_of_other_names_are_subtracted():
    found = records(a=[3.0, 3.1], b=[1.0, 1.2])
    for record in found.of("b"):
        record["measures"]["other"] = 2.5
    value = Value("m", "a", "b", minus_metric="other")
    assert estimate(value, found).value == pytest.approx(0.55)


def test_without_a_record_there_is_nothing():
    assert estimate(Value("m", "a"), records(b=[1.0])) is None
    assert estimate(Value("other", "a"), records(a=[1.0])) is None
    assert estimate(Value("m", "a", "b"), records(a=[1.0])) is None


@pytest.mark.parametrize(
    ("values", "side", "bound", "expected"),
    [
        ([-1.0, -1.1, -0.9], "below", 0.0, "holds"),
        ([-1.0, -1.1, -0.9], "above", 0.0, "fails"),
        ([1.0, 1.1, 0.9], "below", 0.0, "fails"),
        ([1.0, 1.1, 0.9], "above", 0.5, "holds"),
        ([-1.0, 1.1, 0.9], "below", 0.0, "open"),
        ([1.0], "above", 0.0, "open"),
        ([], "above", 0.0, "missing"),
    ],
)
def test_an_expectation_is_decided_by_the_whole_interval(values, side, bound, expected):
    assert outcome(Expectation(Value("m", "a"), side, bound), records(a=values)) == expected


def test_within_is_decided_by_both_sides():
    near = Expectation(Value("m", "a"), "within", 1.0, width=0.5)
    assert near.expected == "within 0.5 of 1"
    for values, expected in (
        ([0.9, 1.0, 1.1], "holds"),
        ([0.4, 0.3, 0.35], "fails"),
        ([1.9, 2.0, 2.1], "fails"),
        ([0.5, 0.6, 0.4], "open"),
        ([0.2, 1.0, 1.8], "open"),
    ):
        assert outcome(near, records(a=values)) == expected


@pytest.mark.parametrize(("bound", "expected"), [(1.5, "holds"), (0.5, "fails"), (1.0, "open")])
def test_of_what_is_counted_one_run_decides(bound, expected):
    value = Value("m", "a", counted=True)
    assert outcome(Expectation(value, "below", bound), records(a=[1.0])) == expected


@pytest.mark.parametrize(("times", "enough"), [(2, False), (3, True)])
def test_of_few_units_no_interval_is_made(times, enough):
    """Resampling two blocks can only give values between the two."""
    ours, theirs = units([10, 50, 90], times=times), units([12, 53, 92.5], times=times)
    own = {"value": 3.0, "low": 2.0, "high": 4.0, "over": f"{3 * times} blocks of 20 windows"}
    few = records(a=[ours], b=[theirs], own=[own])
    for value in (Value("m", "a", "b"), Value("m", "a"), Value("m", "own")):
        found = estimate(value, few)
        assert (found.low is not None) == enough and f"{3 * times} " in found.over
    assert estimate(Value("m", "a", "b"), few).value == pytest.approx(-7.5 / 30)


def test_seeds_that_draw_from_the_same_units_are_one_sample_of_them():
    """Each seed counted different draws from the same books: sums are added book by book."""
    drawn = {
        "a": [
            ([1.0, 4.0, 3.0], [2, 8, 4]),
            ([3.0, 2.0, 1.0], [4, 2, 4]),
            ([2.0, 2.0, 2.0], [3, 3, 3]),
        ],
        "b": [
            ([1.0, 1.0, 1.0], [2, 4, 4]),
            ([1.0, 2.0, 1.0], [4, 4, 2]),
            ([1.0, 0.0, 1.0], [3, 0, 3]),
        ],
    }
    made = {arm: [units(*one) for one in seeds] for arm, seeds in drawn.items()}
    few = records(**made)
    totals = {arm: np.sum(seeds, axis=0) for arm, seeds in drawn.items()}
    shares = {arm: sums.sum() / counts.sum() for arm, (sums, counts) in totals.items()}
    found = estimate(Value("m", "a", over_units=True), few)
    assert found.value == pytest.approx(shares["a"]) and found.low < found.value < found.high
    assert found.over == "9 documents, all 3 seeds together" and found.over_units
    paired = estimate(Value("m", "a", "b", over_units=True), few)
    assert paired.value == pytest.approx(shares["a"] - shares["b"])
    assert paired.over == "9 documents, all 3 seeds together, paired"
    # A slow bootstrap over books.
    random = np.random.default_rng(1)
    (ours, our_counts), (theirs, their_counts) = (np.tile(totals[arm], 3) for arm in "ab")
    again = []
    for _ in range(4000):
        books = random.integers(0, 9, 9)
        one = ours[books].sum() / our_counts[books].sum()
        again.append(one - theirs[books].sum() / their_counts[books].sum())
    assert [paired.low, paired.high] == pytest.approx(np.percentile(again, [2.5, 97.5]), abs=0.02)
    # Without sums by unit there are only seeds.
    bare = estimate(Value("m", "bare", over_units=True), records(bare=[1.0, 1.1, 1.2]))
    assert bare.over == "3 seeds" and not bare.over_units


def test_of_probabilities_the_largest_is_told():
    found = estimate(Value("m", "a", largest=True), records(a=[1e-30, 1e-3, 1e-9]))
    assert (found.value, found.low, found.over) == (1e-3, None, "the largest of 3 seeds")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["holds", "holds"], "reproduced"),
        (["holds", "fails"], "partly reproduced"),
        (["holds", "open"], "partly reproduced"),
        (["holds", "missing"], "partly reproduced"),
        (["holds", "open", "open"], "undecided"),
        (["holds", "fails", "open", "open"], "undecided"),
        (["holds", "fails", "fails", "fails"], "not reproduced"),
        (["fails", "fails"], "not reproduced"),
        (["fails", "missing"], "not reproduced"),
        (["fails", "open"], "not reproduced"),
        (["open"], "undecided"),
        (["missing", "missing"], "not measured"),
    ],
)
def test_verdicts(outcomes, expected):
    assert verdict(outcomes) == expected
    # Until all runs are made, the verdict is incomplete, or not measured.
    known = expected != "not measured"
    assert verdict(outcomes, complete=False) == ("incomplete" if known else expected)
    # With few seeds the verdict is worded weakly.
    of_few = {
        "reproduced": "points for it",
        "partly reproduced": "points partly for it",
        "not reproduced": "points against it",
    }
    assert verdict(outcomes, few=True) == of_few.get(expected, expected)
