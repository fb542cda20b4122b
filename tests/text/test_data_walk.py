"""Rows of documents: every target once, windows as `cut` makes them, positions that can be resumed."""

import threading
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch

from holdover.text.prefetch import prefetch
from holdover.text.window_loader import (
    Segment,
    Walk,
    count_windows,
    side_by_side,
    training_rows,
    whole_documents,
    with_resets,
)
from holdover.windows import IGNORED, cut
from streams import stream

LENGTHS = (40, 3, 1, 29, 2, 64, 17)


@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 17, 18, 30, 31])
@pytest.mark.parametrize("overlap", [0, 1, 3, 8])
def test_windows_are_those_of_cut(length, overlap):
    tokens = stream(length + 1)
    walk = Walk(tokens, [whole_documents(tokens)], 9, overlap)
    spans = cut(length, 9, overlap)
    assert len(walk) == len(spans) == count_windows(length, 9, overlap)
    for number, span in enumerate(spans):
        place, begins = walk.place(0, number)
        assert place.start == span.start and place.start + place.length == span.stop
        assert place.start + place.keep == span.keep_start and span.keep_stop == span.stop
        assert begins == (number == 0) and place.window == number


def test_the_papers_windows():
    """Windows of 10 at overlap 3 score t2..t11, then t12..t18, then t19..t25 (counted from 1)."""
    tokens = stream(25)
    walk = Walk(tokens, [whole_documents(tokens)], 10, 3)
    spans = []
    for number in range(len(walk)):
        place, _ = walk.place(0, number)
        spans.append((place.start + place.keep + 2, place.start + place.length + 1))
    assert spans == [(2, 11), (12, 18), (19, 25)]


def targets_of(walk, windows=2):
    """Stream positions that are targets, in the order they are scored, row by row."""
    found = Counter()
    for batch in walk.batches(windows):
        for number, row_places in enumerate(batch.places):
            for row, place in enumerate(row_places):
                if place is None:
                    assert (batch.targets[number, row] == IGNORED).all()
                    continue
                for position in range(place.keep, place.length):
                    where = place.start + position + 1
                    found[where] += 1
                    assert batch.targets[number, row, position] == walk.tokens.ids[where]
                    assert batch.ids[number, row, position] == walk.tokens.ids[where - 1]
                assert (batch.targets[number, row, : place.keep] == IGNORED).all()
                assert (batch.targets[number, row, place.length :] == IGNORED).all()
                assert batch.mask[number, row].sum() == place.length
    return found


def all_targets(tokens):
    """Every token but the first of each document."""
    return Counter(set(range(len(tokens))) - set(tokens.bounds[:-1].tolist()))


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("overlap", [0, 4])
@pytest.mark.parametrize("epoch", [0, 1])
def test_training_predicts_every_token_once_an_epoch(rows, overlap, epoch):
    tokens = stream(*LENGTHS)
    dealt = training_rows(tokens, rows, seed=3, epoch=epoch)
    walk = Walk(tokens, dealt, 9, overlap)
    assert targets_of(walk) == all_targets(tokens)
    sizes = [sum(stretch.length for stretch in row) for row in dealt]
    assert max(sizes) - min(sizes) <= 1


def test_training_resets_the_state_without_changing_the_windows():
    tokens = stream(*LENGTHS)
    rows = training_rows(tokens, 3, seed=0, epoch=0)
    whole = Walk(tokens, rows, 9, 4)
    often = Walk(tokens, with_resets(rows, 2, 9, 4), 9, 4)
    assert targets_of(often) == all_targets(tokens) and whole.lengths() == often.lengths()
    for row, length in enumerate(whole.lengths()):
        for number in range(length):
            (place, begins), (other, forgets) = whole.place(row, number), often.place(row, number)
            assert place == other and forgets == (place.window % 2 == 0) and begins <= forgets


def test_rows_walk_on_inside_a_document_and_say_when_another_begins():
    tokens = stream(*LENGTHS)
    walk = Walk(tokens, training_rows(tokens, 2, seed=1, epoch=0), 9, 0)
    for row, length in enumerate(walk.lengths()):
        placed = [walk.place(row, number) for number in range(length)]
        for (before, _), (after, begins) in pairwise(placed):
            if begins:
                assert after.document != before.document
            else:
                assert after.start == before.start + 9 and after.document == before.document


def test_the_order_is_the_seeds_and_the_epochs():
    tokens = stream(*[20] * 30)

    def order(seed, epoch):
        rows = training_rows(tokens, 1, seed, epoch)
        return [stretch.document for stretch in rows[0]]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1) and order(0, 0) != order(1, 0)
    assert sorted(order(5, 7)) == list(range(30))


def test_a_step_number_is_a_position_in_the_data():
    tokens = stream(*LENGTHS)
    walk = Walk(tokens, training_rows(tokens, 2, seed=0, epoch=0), 9, 2)
    every = list(walk.batches(3))
    for start in range(len(every) + 1):
        for one, other in zip(every[start:], walk.batches(3, start), strict=True):
            assert torch.equal(one.ids, other.ids) and one.places == other.places


def test_more_rows_than_tokens_are_refused():
    with pytest.raises(ValueError, match="too few for 9 rows"):
        training_rows(stream(5, 2), 9, seed=0, epoch=0)


def test_counts_of_a_batch_and_unscored_tokens():
    scored = np.zeros(50, bool)
    scored[[7, 8, 30, 0]] = True
    tokens = stream(20, 30, scored=scored)
    walk = Walk(tokens, training_rows(tokens, 2, seed=0, epoch=0), 9, 3)
    batches = list(walk.batches(2))
    assert sum(batch.scored for batch in batches) == 3  # the first token is never predicted
    assert sum(batch.tokens for batch in batches) == 48


def test_full_width_for_compiled_steps():
    tokens = stream(4, 4)
    rows = training_rows(tokens, 2, 0, 0)
    assert next(Walk(tokens, rows, 9).batches(1)).ids.shape == (1, 2, 3)
    batch = next(Walk(tokens, rows, 9, full_width=True).batches(1))
    assert batch.ids.shape == (1, 2, 9) and batch.padded == (True,)


@pytest.mark.parametrize("rows", [1, 2, 5, 50])
def test_side_by_side_keeps_every_stretch_and_sorts_rows_by_length(rows):
    tokens = stream(*LENGTHS)
    stretches = whole_documents(tokens)
    dealt = side_by_side(stretches, rows, 9, 2)
    assert sorted((s for row in dealt for s in row), key=lambda s: s.start) == stretches
    lengths = Walk(tokens, dealt, 9, 2).lengths()
    assert lengths == sorted(lengths, reverse=True) and len(dealt) == min(rows, len(stretches))


def test_parts_of_a_stretch():
    tokens = stream(100)
    walk = Walk(tokens, [[Segment(0, 0, 99, first=3, last=5)]], 9, 2)
    assert len(walk) == 2
    place, begins = walk.place(0, 0)
    assert begins and place.window == 3 and place.start == 21 and place.keep == 2


def test_prefetch_gives_the_same_batches_and_ends_its_thread():
    tokens = stream(*LENGTHS)
    walk = Walk(tokens, training_rows(tokens, 2, 0, 0), 9)
    got = list(prefetch(walk.batches(2), torch.device("cpu")))
    for one, other in zip(got, walk.batches(2), strict=True):
        assert torch.equal(one.ids, other.ids)
    left = prefetch(walk.batches(1), torch.device("cpu"))
    next(left)
    left.close()
    assert "holdover-prefetch" not in {thread.name for thread in threading.enumerate()}


def test_prefetch_passes_errors_on():
    def broken():
        yield from ()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        next(prefetch(broken(), torch.device("cpu")))
