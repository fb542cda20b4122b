"""Classification measures against scikit-learn and brute force; whole words by hand."""

import numpy as np
import pytest
import torch

from holdover.evaluation import classes
from holdover.evaluation.classes import NextToken
from holdover.evaluation.words import Words

metrics = pytest.importorskip("sklearn.metrics")
V = 30


def positions(count=3000, dtype=torch.float64):
    """Targets with a long tail, and logits that know something about them."""
    random = torch.Generator().manual_seed(0)
    frequent = torch.distributions.Geometric(0.12)
    torch.manual_seed(0)
    targets = frequent.sample((count,)).long().clamp(max=V - 2)  # id V - 1 never occurs
    logits = torch.randn(count, V, generator=random, dtype=torch.float64) * 1.5
    logits[torch.arange(count), targets] += 1.5
    return logits.to(dtype), targets


def filled(logits, targets, part=700, **options):
    counted = NextToken(V, options.pop("classes", None), **options)
    for some, their in zip(logits.split(part), targets.split(part), strict=True):
        counted.update(some, their)
    return counted.result()


def one_vs_rest(logits, targets, ids, minimum):
    scores = logits.log_softmax(1).numpy()
    support = np.bincount(targets.numpy(), minlength=V)
    kept = [i for i in ids if minimum <= support[i] <= len(targets) - minimum]
    exact = [metrics.roc_auc_score(targets.numpy() == i, scores[:, i]) for i in kept]
    return np.mean(exact), np.average(exact, weights=support[kept]), len(kept)


@pytest.mark.parametrize("ids", [None, [0, 1, 2, 5, 9, 28, 29]])
def test_precision_recall_f1_are_those_of_scikit_learn(ids):
    logits, targets = positions()
    found = filled(logits, targets, classes=ids)
    support = np.bincount(targets.numpy(), minlength=V)
    kept = [i for i in (ids or range(V)) if support[i] >= 10]
    assert found["classes_with_support"] == len(kept) < len(ids or range(V))
    for average in ("macro", "weighted"):
        expected = metrics.precision_recall_fscore_support(
            targets, logits.argmax(1), labels=kept, average=average, zero_division=0
        )[:3]
        ours = [found[f"{average}_{name}"] for name in ("precision", "recall", "f1")]
        assert ours == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bins", [4096, 64])
@pytest.mark.parametrize("ids", [None, [0, 3, 4, 29]])
def test_auc_is_within_the_bound_it_states(ids, bins):
    logits, targets = positions()
    found = filled(logits, targets, classes=ids, bins=bins)
    macro, weighted, count = one_vs_rest(logits, targets, ids or range(V), 10)
    assert found["classes_in_auc"] == count
    assert abs(found["macro_auc"] - macro) <= found["macro_auc_error_bound"]
    assert abs(found["weighted_auc"] - weighted) <= found["weighted_auc_error_bound"]
    assert 0 < found["macro_auc_error_bound"] < (0.002 if bins == 4096 else 0.1)


def test_scores_below_the_histogram_share_its_first_bin():
    logits, targets = positions()
    logits[:, 3] -= 100
    logits[:, 4] = -torch.inf
    found = filled(logits, targets)
    macro, _, _ = one_vs_rest(logits.clamp(min=-1e30), targets, range(V), 10)
    assert abs(found["macro_auc"] - macro) <= found["macro_auc_error_bound"]


def test_ranks_by_brute_force_with_ties():
    logits, targets = positions(400, torch.bfloat16)
    logits = (logits * 2).round() / 2  # many equal logits
    found = filled(logits, targets, part=150)
    table, ids = logits.double().numpy(), targets.numpy()
    average, hits = [], {1: 0, 5: 0}
    for row, target in zip(table, ids, strict=True):
        tied = np.flatnonzero(np.sort(-row) == -row[target]) + 1
        average.append(tied.mean())
        # Among equals the lower id is first.
        order = sorted(range(V), key=lambda i: (-row[i], i))
        for k in hits:
            hits[k] += target in order[:k]
    assert found["rank_auc"] == pytest.approx(np.mean(1 - (np.array(average) - 1) / (V - 1)))
    assert found["top1_accuracy"] == hits[1] / 400
    assert found["top5_accuracy"] == hits[5] / 400
    assert found["top1_accuracy"] == metrics.accuracy_score(targets, logits.float().argmax(1))


def test_slices_and_batches_do_not_matter(monkeypatch):
    logits, targets = positions(500, torch.float32)
    whole = filled(logits, targets, part=500)
    monkeypatch.setattr(classes, "SLICE", 40 * V)
    assert filled(logits, targets, part=170) == whole


def test_result_says_what_it_is_about():
    logits, targets = positions(200)
    found = filled(logits, targets, classes=[3, 1, 2], minimum_support=7)
    assert found["classes"] == "the 3 most frequent targets of 30"
    assert found["minimum_support"] == 7 and found["positions"] == 200
    assert filled(logits, targets)["classes"] == "all 30"
    found = filled(logits, targets, minimum_support=1000)
    assert found["classes_with_support"] == 0 and found["macro_auc"] is None
    assert found["weighted_f1"] is None


def test_update_says_which_targets_were_the_most_likely():
    logits, targets = positions(100)
    right = NextToken(V, None).update(logits, targets)
    assert (right == (logits.argmax(1) == targets)).all()
    assert NextToken(V, None).update(logits[:0], targets[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: NextToken(50_257, None), "most frequent targets"),
        (lambda: NextToken(30, [30]), "from 0 to 29"),
        (lambda: NextToken(30, []), "0 classes"),
        (lambda: NextToken(30, None, minimum_support=0), "at least 1"),
        (lambda: NextToken(30, None).result(), "No position"),
        (
            lambda: NextToken(30, None).update(torch.zeros(2, 31), torch.zeros(2).long()),
            "do not fit",
        ),
        (lambda: NextToken(3, None).update(torch.zeros(1, 3), torch.tensor([-100])), "-100"),
        (
            lambda: NextToken(2, None).update(torch.tensor([[0, torch.nan]]), torch.tensor([1])),
            "NaN",
        ),
    ],
)
def test_refusals(call, said):
    with pytest.raises(ValueError, match=said):
        call()


PIECES = ["The", " cat", "s", " sat", "\n", "On", " ", "mat", "a ", "b"]


def vocabulary():
    return Words(
        np.array([piece[0].isspace() for piece in PIECES]),
        np.array([piece[-1].isspace() for piece in PIECES]),
        np.array([piece.isspace() for piece in PIECES]),
    )


def judged(pieces, wrong=(), unscored=(), bounds=(0,)):
    ids = np.array([PIECES.index(piece) for piece in pieces])
    correct, scored = np.ones(len(ids), bool), np.ones(len(ids), bool)
    correct[list(wrong)] = False
    scored[list(unscored)] = False
    return vocabulary().of(ids, correct, scored, np.array(bounds))


def test_words_are_right_as_a_whole():
    text = ["The", " cat", "s", " sat", "\n", "On", " ", "mat"]
    assert judged(text) == {
        "word_accuracy": 1.0,
        "words_right": 5,
        "words_scored": 5,
        "words_not_fully_scored": 0,
    }
    assert judged(text, wrong=[2])["words_right"] == 4
    assert judged(text, wrong=[1, 2])["words_right"] == 4
    assert judged(text, wrong=[4, 6])["words_right"] == 5  # white space is no word
    assert judged(text, unscored=[0, 2])["words_scored"] == 3
    assert judged(text, unscored=[0, 2])["words_not_fully_scored"] == 2


def test_words_begin_after_white_space_and_at_documents():
    assert judged(["a ", "b", "mat"])["words_scored"] == 2
    assert judged(["The", "mat"])["words_scored"] == 1
    assert judged(["The", "mat"], bounds=(0, 1, 2))["words_scored"] == 2
    assert judged(["\n", " "])["word_accuracy"] is None


def test_first_tokens_of_words_for_intervals():
    ids = np.array([PIECES.index(piece) for piece in ["The", " cat", "s", "\n", "On"]])
    correct = np.array([1, 1, 0, 1, 1], bool)
    first, right, words = vocabulary().judged(ids, correct, np.ones(5, bool), np.array([0]))
    assert first.tolist() == [0, 1, 4] and right.tolist() == [True, False, True] and words == 3


def test_words_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="three vectors"):
        Words(np.ones(3, bool), np.ones(4, bool), np.ones(3, bool))
    with pytest.raises(ValueError, match="one length"):
        vocabulary().of(np.array([0, 1]), np.ones(1, bool), np.ones(2, bool), np.array([0]))
    with pytest.raises(ValueError, match="inside the text"):
        judged(["The"], bounds=(0, 5))
