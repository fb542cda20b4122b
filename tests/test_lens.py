"""The lens: each token's bits with its state, without and with another's, against single steps."""

import numpy as np
import pytest
import torch

from holdover.evaluate import lens, score
from holdover.evaluate.diagnose import KeptStates, donors, drawn_windows
from holdover.evaluate.score import stretches_to_score
from holdover.windows import Window
from streams import stream
from tiny import attach, build

WINDOW = 7
CPU = torch.device("cpu")
CARRIES = {
    "pooled": {},
    "tokens": {"carry": "tokens", "slots": 2},
    "overlap": {"overlap": 3, "pool_positions": "non_overlap"},
}


def double_model(**options):
    return attach(build("gpt2", "causal-lm").double(), window=WINDOW, **options).eval()


@torch.no_grad()
def bits_of(model, tokens, stretch, number, state):
    """Where a window's targets stand in the stream, and their bits behind a state."""
    settings = model.settings
    start = stretch.start + number * (settings.window - settings.overlap)
    stop = min(start + settings.window, stretch.start + stretch.length)
    ids = torch.from_numpy(tokens.ids[start : stop + 1].astype(np.int64))
    output, _ = model.step(Window(ids[None, :-1]), state)
    keep = settings.overlap if number else 0
    logits = output["logits"][0, keep:].log_softmax(-1)
    nats = -logits.gather(1, ids[1 + keep :, None])[:, 0]
    return slice(start + keep + 1, stop + 1), nats.numpy() / np.log(2)


@pytest.mark.parametrize("lengths", [(80,), (40, 33, 21)], ids=["one document", "several"])
@pytest.mark.parametrize("carry", CARRIES)
def test_every_number_by_hand(carry, lengths):
    model, tokens = double_model(**CARRIES[carry]), stream(*lengths)
    seen = lens(model, tokens, rows=5)
    stretches = stretches_to_score(tokens, model.settings, None)
    overlap = model.settings.overlap
    windows = drawn_windows(tokens, stretches, WINDOW, overlap, len(tokens), 0)
    kept = KeptStates(stretches, windows)
    scores = score(model, tokens, rows=2, device=CPU, keep_state=kept)
    np.testing.assert_allclose(seen.own, scores.nll / np.log(2), rtol=1e-10)
    other, _ = donors(stretches, windows, 0)
    past = np.zeros(len(tokens), bool)
    for number, (stretch, window) in enumerate(windows):
        for found, state in (
            (seen.own, kept.states[number]),
            (seen.without, None),
            (seen.other, kept.states[other[number]]),
        ):
            where, bits = bits_of(model, tokens, stretches[stretch], window, state)
            np.testing.assert_allclose(found[where], bits, rtol=1e-9)
            past[where] = True
    # First windows have no past that could be taken away.
    np.testing.assert_array_equal(seen.own[~past], seen.without[~past])
    np.testing.assert_array_equal(seen.own[~past], seen.other[~past])
    assert np.isnan(seen.own[tokens.bounds[:-1]]).all()
    assert np.isfinite(np.delete(seen.saved, tokens.bounds[:-1])).all()


def test_what_is_only_read_has_no_bits():
    scored = np.ones(60, bool)
    scored[20:40] = False
    seen = lens(double_model(), stream(60, scored=scored))
    for values in (seen.own, seen.without, seen.other):
        assert np.isnan(values[20:40]).all() and np.isfinite(values[41:]).all()


def test_progress_counts_every_reading():
    told = []
    lens(double_model(), stream(80), advance=told.append)
    windows = -(-79 // WINDOW)
    assert sum(told) == windows + 2 * (windows - 1)


def test_a_model_without_a_state_has_nothing_to_look_at():
    with pytest.raises(ValueError, match="carries nothing"):
        lens(double_model(carry="none"), stream(40))
