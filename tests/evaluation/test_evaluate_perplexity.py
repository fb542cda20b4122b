"""Perplexities and bits: the conventions, on numbers worked out by hand."""

import math

import pytest

from holdover.evaluation.perplexity import summarise


def test_every_number_is_the_same_sum_divided_once():
    counts = {"tokens": 8, "words": 4, "lines": 1, "bytes": 20, "characters": 16}
    found = summarise(16 * math.log(2), counts)
    assert found["perplexity_per_token"] == pytest.approx(4)
    assert found["perplexity_per_word"] == pytest.approx(16)
    assert found["perplexity_per_word_and_line"] == pytest.approx(2 ** (16 / 5))
    assert found["perplexity_per_byte"] == pytest.approx(2**0.8)
    assert found["bits_per_byte"] == pytest.approx(0.8)
    assert found["bits_per_character"] == pytest.approx(1)
    assert found["nats"] == pytest.approx(16 * math.log(2))
    assert found["counts"] == {
        "tokens": 8,
        "words": 4,
        "words_and_lines": 5,
        "bytes": 20,
        "characters": 16,
    }


def test_wikitext_by_its_published_count():
    """30.47 for each of 245,569 words and line ends is 18.5 a token of GPT-2."""
    nats = math.log(30.47) * 245_569
    found = summarise(nats, {"tokens": 287_644, "words": 241_211, "lines": 4_358})
    assert found["counts"]["words_and_lines"] == 245_569
    assert found["perplexity_per_word_and_line"] == pytest.approx(30.47)
    assert found["perplexity_per_word"] == pytest.approx(32.41, abs=0.01)
    assert found["perplexity_per_token"] == pytest.approx(18.5, abs=0.05)


def test_what_was_not_counted_is_none():
    found = summarise(1.0, {"tokens": 2, "words": 0, "bytes": 4})
    assert found["perplexity_per_word"] is None
    assert found["perplexity_per_word_and_line"] is None
    assert found["bits_per_character"] is None
    assert found["bits_per_byte"] is not None


def test_a_hopeless_model_is_infinitely_perplexed():
    assert summarise(5000.0, {"tokens": 1})["perplexity_per_token"] == math.inf
