"""Exact match and F1, worked out by hand."""

import pytest

from holdover.questions.answering import exact_match, f1, normalised


@pytest.mark.parametrize(
    ("answer", "compared"),
    [
        ("The  Aristocats!", "aristocats"),
        ("a man, a plan", "man plan"),
        ("Theatre of an Anchor", "theatre of anchor"),
        # The dash goes before words are looked at, so that two become one.
        ("Maude-Roxby", "mauderoxby"),
        ("U.S.\n 1,192", "us 1192"),
        ("the", ""),
    ],
)
def test_what_is_compared(answer, compared):
    assert normalised(answer) == compared


@pytest.mark.parametrize(
    ("given", "expected", "em", "share"),
    [
        ("The Beatles", "beatles", 1, 1),
        ("John Lennon", "Paul McCartney", 0, 0),
        # One of two words right, one of one found: 2 * 1/2 * 1 / (1/2 + 1).
        ("John Lennon", "Lennon", 0, 2 / 3),
        # Two of three, two of four: 2 * 2/3 * 1/2 / (2/3 + 1/2).
        ("new york city", "city of new orleans", 0, 4 / 7),
        # A word counts as often as it stands: one of two, one of one.
        ("ping ping", "ping", 0, 2 / 3),
        ("yes", "Yes.", 1, 1),
        ("no", "yes", 0, 0),
        # It shares a word with the expected answer, and is no less wrong for it.
        ("no", "no man's land", 0, 0),
        ("yes man", "yes", 0, 0),
        ("noanswer", "noanswer given", 0, 0),
        # As HotpotQA's own script has it: nothing in common but the article.
        ("the", "a", 1, 0),
        ("", "apple", 0, 0),
    ],
)
def test_exact_match_and_f1(given, expected, em, share):
    assert exact_match(given, expected) == em
    assert f1(given, expected) == pytest.approx(share)
    assert f1(expected, given) == pytest.approx(share)
