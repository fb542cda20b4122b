"""How texts are cut: golden lists, and every position kept exactly once."""

import random

import pytest
import torch

from holdover import cut
from holdover.windows import join, last_tokens, lay_out, shift_left

pytestmark = pytest.mark.quick


def test_the_papers_example_of_overlap():
    """T = 10, o = 3: targets t_2..11, then t_12..18, t_19..25 (its generic span misprints n = 0)."""
    spans = cut(25, 10, 3)
    # 1-based targets of a window: one after each position it keeps.
    targets = [(span.keep_start + 2, span.keep_stop + 1) for span in spans]
    assert targets == [(2, 11), (12, 18), (19, 25), (26, 26)]
    assert [(span.start, span.stop) for span in spans] == [(0, 10), (7, 17), (14, 24), (21, 25)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1, 4), [(0, 1, 0, 1)]),
        ((4, 4), [(0, 4, 0, 4)]),
        ((5, 4), [(0, 4, 0, 4), (4, 5, 4, 5)]),
        ((6, 4, 3), [(0, 4, 0, 4), (1, 5, 4, 5), (2, 6, 5, 6)]),
        # Two tokens were read in an earlier call.
        ((7, 4, 2, 2), [(0, 4, 2, 4), (2, 6, 4, 6), (4, 7, 6, 7)]),
        # Centred: the middle of each overlap divides.
        ((10, 6, 4, 0, True), [(0, 6, 0, 4), (2, 8, 4, 6), (4, 10, 6, 10)]),
        ((9, 6, 3, 0, True), [(0, 6, 0, 5), (3, 9, 5, 9)]),
    ],
)
def test_golden_lists(arguments, expected):
    spans = cut(*arguments)
    assert [(s.start, s.stop, s.keep_start, s.keep_stop) for s in spans] == expected


def test_every_position_is_kept_once_in_a_window_that_reads_it():
    generator = random.Random(0)
    for _ in range(500):
        window = generator.randint(1, 12)
        overlap = generator.randint(0, window - 1)
        seen = generator.randint(0, overlap)
        length = seen + generator.randint(1, 60)
        centred = generator.random() < 0.5
        spans = cut(length, window, overlap, seen, centred)
        kept = [i for span in spans for i in range(span.keep_start, span.keep_stop)]
        assert kept == list(range(seen, length))
        assert all(s.start <= s.keep_start and s.keep_stop <= s.stop for s in spans)
        assert all(s.stop - s.start == window for s in spans[:-1])


def test_centred_windows_keep_each_position_where_it_has_most_context():
    for window, overlap, length in ((8, 5, 41), (7, 2, 30), (6, 5, 17)):
        spans = cut(length, window, overlap, centred=True)
        for span in spans:
            for i in range(span.keep_start, span.keep_stop):
                context = {
                    s: min(i - s.start, s.stop - 1 - i) for s in spans if s.start <= i < s.stop
                }
                assert context[span] == max(context.values())


def test_ragged_batches_join_back_into_their_columns():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        rows, columns = 4, 30
        mask = torch.rand(rows, columns, generator=generator) < 0.8
        mask[:, 3] = True
        starts = (torch.rand(rows, columns, generator=generator) < 0.1) & mask
        values = torch.arange(rows * columns).reshape(rows, columns)
        places = lay_out(columns, 7, 3, mask=mask, starts=starts)
        parts = [place.take(values) for place in places]
        joined = join(parts, places, columns)
        assert torch.equal(joined, torch.where(mask, values, torch.zeros_like(values)))


def test_windows_never_cross_a_documents_end():
    mask = torch.ones(1, 12, dtype=torch.bool)
    starts = torch.zeros(1, 12, dtype=torch.bool)
    starts[0, 5] = True
    ids = torch.arange(12)[None]
    places = lay_out(12, 4, 0, mask=mask, starts=starts)
    read = [
        place.take(ids)[0][: 4 if place.mask is None else int(place.mask.sum())] for place in places
    ]
    assert [window.tolist() for window in read] == [[0, 1, 2, 3], [4], [5, 6, 7, 8], [9, 10, 11]]
    assert [place.begins is not None for place in places] == [False, False, True, False]


def test_last_tokens_are_those_of_the_current_document():
    ids = torch.arange(10)[None].repeat(3, 1)
    mask = torch.ones(3, 10, dtype=torch.bool)
    mask[1, 6:] = False
    mask[2, 2:] = False
    starts = torch.zeros(3, 10, dtype=torch.bool)
    starts[0, 8] = True
    # Two columns in front were read before; row 2 has nothing new.
    found = last_tokens(ids, 3, 2, mask, starts)
    assert found.tolist() == [[-1, 8, 9], [3, 4, 5], [-1, 0, 1]]


def test_no_target_crosses_a_documents_end():
    labels = torch.arange(6)[None]
    starts = torch.tensor([[True, False, False, True, False, False]])
    assert shift_left(labels, starts).tolist() == [[1, 2, -100, 4, 5, -100]]
