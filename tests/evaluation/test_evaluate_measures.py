"""What is divided by what: the text that was predicted, document by document."""

import math

import numpy as np
import pytest
import torch

from evaluations import subwords
from holdover.evaluation.measures import mean_by_distance, perplexities
from holdover.evaluation.scoring import Scores, score
from holdover.text.tokens import Tokens
from holdover.tokenization.document import Document
from holdover.tokenization.encoders import ByteEncoder
from tiny import attach, build


def tokens_of(texts, encoder=None, bos=False):
    encoder = encoder or ByteEncoder()
    pieces, counts = [], {name: [] for name in ("bytes", "characters", "words", "lines")}
    for text in texts:
        document = Document("text", lambda text=text: iter((text.encode(),)))
        parts = list(encoder.encode_document(document))
        pieces.append(np.concatenate([ids for ids, _, _ in parts]).astype(np.int64))
        for name, values in counts.items():
            values.append(sum(part[2][name] for part in parts))
    bounds = np.concatenate([[0], np.cumsum([len(ids) for ids in pieces])])
    found = {name: np.array(values) for name, values in counts.items()}
    return Tokens(np.concatenate(pieces), bounds, found, encoder, None, {"bos": bos})


def scores_of(tokens, nats_of_document):
    """Every target of a document costs the same."""
    document = np.repeat(np.arange(tokens.documents), tokens.lengths())
    nll = np.array([float(nats_of_document[number]) for number in document])
    nll[tokens.bounds[:-1]] = np.nan
    zeros = np.zeros(len(tokens), np.int32)
    return Scores(nll, zeros, zeros, document, 1)


def test_a_byte_models_numbers_a_byte_are_its_numbers_a_token():
    """However short documents are: a first byte that nothing predicts is not divided by."""
    tokens = tokens_of(["ab"] * 200)
    found = perplexities(scores_of(tokens, [2.0] * 200), tokens, 8, 200, 0)
    assert found["counts"] == {
        "tokens": 200,
        "words": 200,  # what is left of each is a word
        "words_and_lines": 200,
        "bytes": 200,
        "characters": 200,
    }
    assert found["perplexity_per_byte"] == found["perplexity_per_token"]
    assert found["bits_per_byte"] == pytest.approx(2 / math.log(2))


@pytest.mark.parametrize(
    "text", ["late tide was here\nand so on", " \n = Title = \n \n words", "é"]
)
def test_what_is_predicted_is_all_but_the_first_token(text):
    for encoder in (ByteEncoder(), subwords()):
        tokens = tokens_of([text], encoder)
        rest = encoder.decode(tokens.ids[1:].tolist())
        found = {name: int(values[0]) for name, values in tokens.predicted_counts().items()}
        assert found["bytes"] == len(rest)
        assert found["words"] == len(rest.decode(errors="replace").split())
        assert found["lines"] == rest.count(b"\n")


@pytest.mark.parametrize("reset_every", [None, 1, 3])
@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("carry", ["none", "pooled"])
def test_distances_are_counted_from_where_the_state_begins(carry, overlap, reset_every):
    """Window by window, as they are read: a reset is in front of its window's first token."""
    window, tokens = (
        8,
        tokens_of(["a text of forty-one bytes, to be read so.", "short", "x", "and on"]),
    )
    model = attach(
        build("gpt2", vocab_size=256), window=window, overlap=overlap, carry=carry
    ).eval()
    scores = score(model, tokens, rows=2, device=torch.device("cpu"), reset_every=reset_every)
    expected: dict[int, list[float]] = {}
    for start, length in zip(tokens.bounds[:-1], tokens.lengths(), strict=True):
        firsts = range(0, max(length - 1 - overlap, 1), window - overlap)
        for number, first in enumerate(firsts):
            begins = firsts[number // reset_every * reset_every] if reset_every else 0
            for place in range(first + (overlap if number else 0), min(first + window, length - 1)):
                part = (
                    0 if place - begins < window else int(math.log2((place - begins) / window)) + 1
                )
                expected.setdefault(part, []).append(scores.nll[start + place + 1])
    found = mean_by_distance(scores, tokens, window, overlap, reset_every)
    assert [part["tokens"] for part in found] == [len(expected[part]) for part in sorted(expected)]
    means = [np.mean(expected[part]) for part in sorted(expected)]
    assert [part["loss"] for part in found] == pytest.approx(means, abs=1e-5)
    assert [part["from"] for part in found] == [0, 8, 16, 32][: len(found)]


def test_after_a_bos_everything_is_predicted():
    tokens = tokens_of(["one two", "three"], bos=True)
    assert tokens.predicted_counts()["words"].tolist() == [2, 1]


def test_intervals_a_word_draw_documents_with_their_own_words():
    """Documents whose words cost the same, in tokens of different cost: there is no doubt a word."""
    texts = [("a b c d " * 10) if n % 2 else ("abcdefg " * 10) for n in range(40)]
    tokens = tokens_of(texts)
    words = tokens.predicted_counts()["words"]
    targets = tokens.lengths() - 1
    found = perplexities(scores_of(tokens, 3.0 * words / targets), tokens, 8, 500, 0)
    assert found["interval_over"] == "documents"
    low, high = found["intervals"]["perplexity_per_word"]
    assert low == pytest.approx(high) == pytest.approx(math.exp(3))
    low, high = found["intervals"]["perplexity_per_token"]
    assert high > 1.1 * low


def test_blocks_are_of_equal_text_at_every_overlap():
    tokens = tokens_of(["x" * 1001])
    scores = scores_of(tokens, [1.0])
    found = perplexities(scores, tokens, 10, 200, 0)
    assert found["per_unit"]["tokens"] == [200] * 5
    # As many windows again score the same text where half of it is read again.
    twice = Scores(scores.nll, scores.window * 2, scores.position, scores.document, 2)
    assert perplexities(twice, tokens, 10, 200, 0)["per_unit"] == found["per_unit"]
    assert "held_fixed" in found
