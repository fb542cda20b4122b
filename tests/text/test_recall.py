"""A corpus that cannot be learnt without a memory, through the command line: the twins part ways."""

import json

import pytest

from holdover.cli import entry as cli
from holdover.text.synthetic import CHANCE, Majority, Once, Recall, open_synthetic

SETTINGS = """
model: gpt2
from_scratch: true
shape: {n_layer: 2, n_embd: 64, n_head: 4, n_positions: 32, initializer_range: 0.12,
        resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0}
data: recall
tokenizer: bytes
window: 16
windows: 3
rows: 32
learning_rate: 3e-3
added_learning_rate: 3e-3
warm_up: 20
max_steps: 200
"""
TWINS = {
    "pooled": ["recurrence.pooling=last"],
    "tokens": ["recurrence=tokens", "recurrence.map_hidden="],
    # It guesses after a few steps as after many.
    "none": ["recurrence=none", "max_steps=60"],
}


def test_only_answers_are_scored_and_they_need_the_first_window():
    for document in Recall("valid", window=16).documents():
        text = b"".join(document.read()).decode()
        assert len(text) == 3 * 16 + 1
        (answer, again), fact = [text[a:b] for a, b in document.scored], text[15]
        assert answer == again == fact
        # Nothing in the windows of the questions gives the answer away before it is asked.
        assert fact not in text[16:31] and text[14] == "=" and text[30] == text[46] == "?"


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.sampled(99)
def test_a_recurrent_model_answers_and_its_plain_twin_guesses(name, tmp_path):
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    cache = ["--cache-dir", str(tmp_path / "cache")]
    run = ["--config", str(tmp_path / "settings.yaml"), "--output", str(tmp_path / "run")]
    assert cli.main(["train", *run, *cache, *TWINS[name]]) == 0
    read = ["--model", str(tmp_path / "run"), "--data", "recall", "--output", str(tmp_path)]
    assert cli.main(["eval", *read, *cache, "--history", "1", "--no-plots"]) == 0
    (row,) = json.loads((tmp_path / "eval.json").read_text())["rows"]
    right = row["next_token"]["top1_accuracy"]
    assert row["counts"]["tokens"] == 512
    if name == "none":
        assert abs(right - CHANCE) < 0.05 and "state" not in row
    else:
        assert right > 0.95
        # Without the state, or with another document's, the same model guesses too.
        for spoiled in ("zeroed", "other"):
            assert row["state"][spoiled]["low"] > 1


def test_recall_asks_in_as_many_windows_as_it_is_told():
    (document, *others) = Recall("valid", window=16, asks=5).documents()
    text = b"".join(document.read()).decode()
    assert len(text) == 6 * 16 + 1 and len(others) == 255
    assert {text[a:b] for a, b in document.scored} == {text[15]} and len(document.scored) == 5
    # Long ones are fewer, and another length is another corpus.
    assert len(list(Recall("test", window=16, asks=1000).documents())) == 65
    assert Recall("test", 16, asks=3).fingerprint() != Recall("test", 16).fingerprint()


def test_once_says_a_fact_once_and_asks_for_it_once():
    distances = []
    for document in Once("valid", window=16, farthest=5).documents():
        text = b"".join(document.read()).decode()
        ((start, stop),) = document.scored
        fact = text[15]
        assert text[14] == "=" and text[start - 1] == "?" and text[start:stop] == fact
        # The fact stands where it is said and where it is asked for, and no other symbol anywhere.
        assert sum(letter.isupper() for letter in text) == 2
        assert text[stop:] == "." and stop % 16 == 0
        distances.append(start // 16)
    counts = [distances.count(n) for n in (1, 2, 3, 4, 5)]
    # There is more of what is near to learn from, and as much of all in the test.
    assert sum(counts) == len(distances) == 5 * 256 and counts == sorted(counts, reverse=True)
    test = [(document.scored[0][0]) // 16 for document in Once("test", 16, farthest=5).documents()]
    assert all(abs(test.count(n) - 256) < 50 for n in (1, 2, 3, 4, 5))


def test_after_asks_at_one_distance():
    documents = list(Once("test", window=16, nearest=1000, farthest=1000).documents())
    assert len(documents) == 256
    assert {document.scored for document in documents[:9]} == {((1001 * 16 - 1, 1001 * 16),)}


def test_the_majority_is_that_of_all_windows():
    lengths, answers = set(), set()
    for document in Majority("valid", window=16).documents():
        text = b"".join(document.read()).decode()
        ((start, stop),) = document.scored
        assert text[start - 1] == "?" and text[stop:] == "." and stop % 16 == 0
        before = text[: start - 1]
        ahead = before.count("A") - before.count("B")
        assert ahead != 0 and text[start:stop] == ("A" if ahead > 0 else "B")
        lengths.add(stop // 16)
        answers.add(text[start:stop])
    assert lengths == set(range(1, 9)) and answers == {"A", "B"}


@pytest.mark.parametrize("spec", ["recall", "recall-7", "once-8", "after-3", "majority"])
def test_synthetic_corpora_by_name(spec):
    assert open_synthetic(spec, "test", 16).name == spec


@pytest.mark.parametrize(
    "spec", ["recall-0", "once", "after-0", "recall-x", "recalls", "novel.txt"]
)
def test_other_names_are_other_corpora(spec):
    assert open_synthetic(spec, "test", 16) is None
