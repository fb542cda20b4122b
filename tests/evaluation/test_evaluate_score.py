"""Scoring against brute force: one forward for every single target, states carried by a plain loop."""

import math
import sys

import numpy as np
import pytest
import torch

from brute_force import brute_force, spans
from holdover.evaluation.scoring import score, segments_to_score
from holdover.windows import Window
from streams import stream
from tiny import WIDTH, attach, build

WINDOW = 9
CPU = torch.device("cpu")
# One token, two, less than a window of inputs, exactly one, one more, several.
LENGTHS = (23, 1, 2, 5, 10, 11, 19, 8)
CARRIES = {
    "plain": {"carry": "none"},
    "pooled": {"slots": 2},
    "tokens": {"carry": "tokens", "slots": 2},
    "learned start": {"start": "learned", "pooling": "last"},
}


def double_model(**options):
    return attach(build("gpt2"), window=WINDOW, **options).double()


@pytest.mark.parametrize("overlap", [0, 1, 3, WINDOW - 1])
@pytest.mark.parametrize("carry", CARRIES)
def test_every_target_as_brute_force_scores_it(carry, overlap):
    model = double_model(overlap=overlap, **CARRIES[carry])
    tokens = stream(*LENGTHS)
    expected = brute_force(model, tokens, WINDOW, overlap, 1 if carry == "plain" else None)
    firsts = tokens.bounds[:-1]
    assert np.isnan(expected[firsts]).all() and np.isnan(expected).sum() == len(firsts)
    for rows in (1, 2, 5):
        scores = score(model, tokens, rows=rows, device=CPU)
        np.testing.assert_allclose(scores.nll, expected, rtol=1e-10, atol=1e-12)
        assert scores.windows == sum(len(spans(n, WINDOW, overlap)) for n in LENGTHS)
        assert scores.mean() == pytest.approx(np.nanmean(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {"carry": "tokens", "slots": 2}),
        ("mistral", {"insert_layer": "all"}),
        ("gpt_neo", {}),
        ("opt", {"pooling": "attention", "slots": 2}),
        ("xlnet", {"carry": "memory", "memory_length": 7}),
        ("xlnet", {}),
    ],
)
@torch.no_grad()
def test_other_architectures_window_by_window(name, options):
    model = attach(build(name, "causal-lm"), window=WINDOW, overlap=2, **options)
    tokens = stream(*LENGTHS)
    expected = []
    for first, last in zip(tokens.bounds[:-1], tokens.bounds[1:], strict=True):
        ids, state = torch.from_numpy(tokens.ids[first:last].astype(np.int64))[None], None
        for start, stop, scored in spans(last - first, WINDOW, 2):
            output, state = model.step(Window(ids[:, start:stop]), state)
            logits = output["logits"][0].log_softmax(-1)
            for position in range(scored, stop):
                expected.append(-float(logits[position - start, ids[0, position + 1]]))
    for rows in (1, 5):
        scores = score(model, tokens, rows=rows, device=CPU)
        np.testing.assert_allclose(scores.nll[scores.scored], expected, rtol=2e-5)


@pytest.mark.parametrize("carry", CARRIES)
def test_the_form_of_windows_that_compiled_steps_want(carry):
    """Of one shape: padded to the window, with rows that have come to their end."""
    model = double_model(overlap=2, **CARRIES[carry])
    tokens = stream(*LENGTHS)
    expected = score(model, tokens, rows=3, device=CPU)
    model._compiled.step = model._step
    found = score(model, tokens, rows=3, device=CPU)
    np.testing.assert_allclose(found.nll, expected.nll, rtol=1e-10)
    assert found.windows == expected.windows


def test_a_plain_model_is_the_stock_model():
    stock = build("gpt2").double()
    tokens = stream(23, 5)
    with torch.no_grad():
        expected = []
        for first, last, places in ((0, 23, spans(23, WINDOW, 3)), (23, 28, spans(5, WINDOW, 3))):
            ids = torch.from_numpy(tokens.ids[first:last].astype(np.int64))[None]
            for start, stop, scored in places:
                logits = stock(ids[:, start:stop]).logits[0].log_softmax(-1)
                for position in range(scored, stop):
                    expected.append(-logits[position - start, ids[0, position + 1]].item())
    model = attach(build("gpt2"), window=WINDOW, overlap=3, carry="none").double()
    scores = score(model, tokens, rows=2, device=CPU)
    np.testing.assert_allclose(scores.nll[scores.scored], expected, rtol=1e-12)


def test_which_window_and_position_score_a_target():
    """25 tokens in windows of 10 at overlap 3, counted by hand."""
    model = attach(build("gpt2"), window=10, overlap=3)
    scores = score(model, stream(25, 1, 3), rows=2, device=CPU)
    assert scores.scored.tolist() == [False] + [True] * 24 + [False, False] + [True] * 2
    assert scores.window[1:25].tolist() == [0] * 10 + [1] * 7 + [2] * 7
    assert scores.position[1:25].tolist() == [*range(10), *range(3, 10), *range(3, 10)]
    assert scores.position[27:].tolist() == [0, 1] and scores.document[26:].tolist() == [2] * 3
    sums, counts = scores.by_position(10)
    assert counts.tolist() == [2, 2, 1, 3, 3, 3, 3, 3, 3, 3]
    assert sums.sum() == pytest.approx(np.nansum(scores.nll))
    assert scores.windows == 4


def test_the_last_window_is_short_and_still_scored():
    model = attach(build("gpt2"), window=10)
    scores = score(model, stream(22), rows=1, device=CPU)
    assert scores.window[1:].tolist() == [0] * 10 + [1] * 10 + [2]
    assert scores.position[1:].tolist() == [*range(10), *range(10), 0]


@pytest.mark.parametrize("overlap", [0, 1, 4, WINDOW - 1])
def test_hugging_faces_strided_perplexity(overlap):
    """The published recipe, each window weighted by the targets that its shifted loss really has."""
    stock = build("gpt2").double()
    tokens = stream(40)
    ids = torch.from_numpy(tokens.ids.astype(np.int64))[None]
    max_length, stride, seq_len = WINDOW + 1, WINDOW - overlap, 40
    published, corrected, targets, previous_end = 0.0, 0.0, 0, 0
    for begin_loc in range(0, seq_len, stride):
        end_loc = min(begin_loc + max_length, seq_len)
        trg_len = end_loc - previous_end
        input_ids = ids[:, begin_loc:end_loc]
        labels = input_ids.clone()
        labels[:, :-trg_len] = -100
        with torch.no_grad():
            loss = stock(input_ids, labels=labels).loss.item()
        # The first window has nothing to predict its first token from.
        really = int((labels[:, 1:] != -100).sum())
        published, corrected = published + loss * trg_len, corrected + loss * really
        targets, previous_end = targets + really, end_loc
        if end_loc == seq_len:
            break
    model = attach(stock, window=WINDOW, overlap=overlap, carry="none")
    scores = score(model, tokens, rows=3, device=CPU)
    assert targets == scores.scored.sum() == 39
    assert np.nansum(scores.nll) == pytest.approx(corrected, rel=1e-6)
    assert math.exp(scores.mean()) == pytest.approx(math.exp(corrected / targets), rel=1e-6)
    assert abs(published / seq_len - corrected / targets) > 1e-5
    assert published - corrected > 1


@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_state_that_is_reset(every, overlap):
    model = double_model(overlap=overlap)
    tokens = stream(50, 12, 2, 31)
    expected = brute_force(model, tokens, WINDOW, overlap, every)
    whole = score(model, tokens, rows=2, device=CPU)
    for rows in (1, 3, 40):
        scores = score(model, tokens, rows=rows, device=CPU, reset_every=every)
        np.testing.assert_allclose(scores.nll, expected, rtol=1e-10)
        assert np.array_equal(scores.window, whole.window)
    # Up to the first reset nothing differs, behind it everything that has a past does.
    same = np.isclose(expected, whole.nll, rtol=1e-9) | ~whole.scored
    assert np.array_equal(same, (whole.window < every) | ~whole.scored)


@pytest.mark.parametrize("carry", ["plain", "pooled", "tokens"])
def test_tokens_that_are_only_read(carry):
    mask = np.random.default_rng(3).random(sum(LENGTHS)) < 0.3
    model = double_model(overlap=2, **CARRIES[carry])
    tokens = stream(*LENGTHS, scored=mask)
    expected = brute_force(model, tokens, WINDOW, 2, 1 if carry == "plain" else None)
    scores = score(model, tokens, rows=3, device=CPU)
    np.testing.assert_allclose(scores.nll, expected, rtol=1e-10)
    everything = score(model, stream(*LENGTHS), rows=3, device=CPU)
    assert np.array_equal(scores.scored, everything.scored & mask)
    np.testing.assert_allclose(scores.nll[scores.scored], everything.nll[scores.scored])


def pooled_by_hand(model, overlap):
    """A window's state: the mean of the mixed layers over the positions that are not read again."""

    def read(ids, state):
        layers = []
        # The last layer's output is taken behind the final norm, as transformers lists it.
        modules = [*model.backbone.transformer.h[:-1], model.backbone.transformer.ln_f]
        hooks = [
            module.register_forward_hook(lambda module, inputs, output: layers.append(output))
            for module in modules
        ]
        _, after = model.step(Window(ids), state)
        for hook in hooks:
            hook.remove()
        weights = model.recurrence.layer_logits.softmax(0)
        mixed = sum(weight * hidden for weight, hidden in zip(weights, layers, strict=True))
        kept = max(ids.shape[1] - overlap, 1)
        summary = mixed[:, :kept].mean(1, keepdim=True)
        assert summary.shape == (1, 1, WIDTH)
        after.tensors["summary"].copy_(summary)
        return after

    return read


@pytest.mark.parametrize("overlap", [1, 4, WINDOW - 1])
def test_an_overlap_it_was_not_trained_with_pools_only_what_is_not_read_again(overlap):
    model = double_model()
    tokens = stream(30, 12, 4)
    before = model.settings
    with model.reading(overlap=overlap):
        scores = score(model, tokens, rows=2, device=CPU)
    assert model.settings is before
    expected = brute_force(model, tokens, WINDOW, overlap, read=pooled_by_hand(model, overlap))
    np.testing.assert_allclose(scores.nll, expected, rtol=1e-10)
    everything = brute_force(model, tokens, WINDOW, overlap, read=pooled_by_hand(model, 0))
    assert not np.allclose(scores.nll[scores.window > 0], everything[scores.window > 0])


def test_settings_come_back_after_a_failure():
    model = double_model(overlap=2)
    before = model.settings
    with pytest.raises(FloatingPointError), model.reading(overlap=0, window=5):
        raise FloatingPointError(f"overlap {model.settings.overlap}")
    assert model.settings is before


@pytest.mark.parametrize("window", [4, 15])
def test_another_window_than_it_was_trained_with(window):
    model = double_model(overlap=2)
    tokens = stream(40, 16, 3)
    with model.reading(window=window):
        scores = score(model, tokens, rows=2, device=CPU)
    # At the trained overlap all positions are pooled, as in training.
    np.testing.assert_allclose(scores.nll, brute_force(model, tokens, window, 2), rtol=1e-10)


def test_what_the_callbacks_are_shown():
    model = attach(build("gpt2"), window=WINDOW, overlap=2)
    tokens = stream(*LENGTHS)
    shown, states, windows = np.full(len(tokens), np.nan), [], []

    def measure(logits, targets, places):
        assert np.array_equal(tokens.ids[places], targets.numpy())
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        assert np.isnan(shown[places]).all()
        shown[places] = losses.numpy()

    scores = score(
        model,
        tokens,
        rows=3,
        device=CPU,
        measure=measure,
        keep_state=lambda batch, state: states.append(state),
        advance=windows.append,
    )
    np.testing.assert_allclose(shown, scores.nll, rtol=1e-5)
    assert states[0] is None and all(state is not None for state in states[1:])
    assert sum(windows) == scores.windows
    alone = score(model, tokens, rows=3, device=CPU)
    np.testing.assert_allclose(alone.nll, scores.nll, rtol=1e-5)


def test_more_windows_than_are_fetched_at_once():
    model = attach(build("gpt2"), window=2, carry="none")
    scores = score(model, stream(300), rows=1, device=CPU)
    assert scores.scored.sum() == 299 and scores.windows == 150


def test_a_loss_that_is_no_number_is_not_left_out():
    model = attach(build("gpt2"), window=WINDOW)
    with torch.no_grad():
        model.backbone.transformer.wte.weight[50] = float("nan")
    with pytest.raises(FloatingPointError, match="window . of document 0 is not finite"):
        score(model, stream(60), rows=1, device=CPU)


def test_nothing_to_score():
    model = attach(build("gpt2"), window=WINDOW)
    with pytest.raises(ValueError, match="every document is a single token"):
        score(model, stream(1, 1), rows=1, device=CPU)
    with pytest.raises(ValueError, match="no token of the text is marked"):
        score(model, stream(20, scored=np.zeros(20, bool)), rows=1, device=CPU)


def test_gradients_are_not_kept():
    model = attach(build("gpt2"), window=WINDOW)
    kept = []
    score(model, stream(30), rows=1, device=CPU, keep_state=lambda _, state: kept.append(state))
    assert not any(s.tensors["summary"].requires_grad for s in kept if s is not None)


def test_a_long_text_of_a_plain_model_is_cut_into_few_parts(monkeypatch):
    """As many objects as rows want, not as there are windows; the numbers stay the same."""
    tokens = stream(700, 90)
    model = attach(build("gpt2"), window=9, overlap=2, carry="none")
    every = score(model, tokens, rows=3, device=CPU)
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules["holdover.evaluation.scoring"], "PARTS", 10)
    parts = segments_to_score(tokens, model.settings, None)
    assert len(parts) < 14
    few = score(model, tokens, rows=3, device=CPU)
    np.testing.assert_allclose(few.nll, every.nll, atol=1e-5)
    assert few.windows == every.windows and (few.window == every.window).all()
