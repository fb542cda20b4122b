"""Is the state used: every number of the diagnosis against a loop written by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from holdover.evaluation.diagnose import FAR, KeptStates, diagnose, donors, drawn_windows
from holdover.evaluation.scoring import score, segments_to_score
from holdover.language.eval_report import state_sentence
from holdover.text.window_loader import Segment
from holdover.windows import Window
from streams import stream
from tiny import attach, build

WINDOW = 7
CPU = torch.device("cpu")
CARRIES = {
    "pooled": {},
    "several slots": {"slots": 3, "pooling": "fixed-key", "insert_layer": "all"},
    "tokens": {"carry": "tokens", "slots": 2},
    "learned start": {"start": "learned"},
    "tokens, learned start": {"carry": "tokens", "start": "learned"},
    "overlap": {"overlap": 2},
    "detached": {"detach_state": True},
}
MANY = tuple(np.random.default_rng(5).integers(12, 50, 24).tolist())


def double_model(**options):
    return attach(build("gpt2"), window=WINDOW, **options).double()


def diagnosed(model, tokens, count=400, rows=3, history=2, reset_every=None, seed=0):
    """The result, and what it was made of."""
    settings = model.settings
    stretches = segments_to_score(tokens, settings, reset_every)
    drawn = drawn_windows(tokens, stretches, settings.window, settings.overlap, count, seed)
    kept = KeptStates(stretches, drawn)
    scores = score(model, tokens, rows=rows, device=CPU, reset_every=reset_every, keep_state=kept)
    found = diagnose(
        model,
        tokens,
        stretches,
        drawn,
        kept,
        scores.nll,
        rows=rows,
        history=history,
        device=CPU,
        seed=seed,
    )
    return found, stretches, drawn, kept, scores


def window_of(model, tokens, stretch, number):
    """A window's ids, and those of its targets with how many of the first are not scored."""
    settings = model.settings
    start = stretch.start + number * (settings.window - settings.overlap)
    stop = min(start + settings.window, stretch.start + stretch.length)
    ids = torch.from_numpy(tokens.ids[start : stop + 1].astype(np.int64))
    return ids[None, :-1], ids[None, 1:], settings.overlap if number else 0


def loss_after(model, tokens, stretch, number, state=None, history=0):
    """Summed -log p of a window behind a state, or behind some windows read from nothing."""
    for before in range(number - history, number):
        ids, _, _ = window_of(model, tokens, stretch, before)
        _, state = model.step(Window(ids), state)
    ids, targets, keep = window_of(model, tokens, stretch, number)
    output, _ = model.step(Window(ids), state)
    logits = output["logits"][0, keep:].log_softmax(-1)
    return -logits.gather(1, targets[0, keep:, None]).sum(), targets.shape[1] - keep


def mean_over(losses):
    sums, counts = zip(*losses, strict=True)
    return float(sum(sums)) / sum(counts)


@torch.no_grad()
@pytest.mark.parametrize("lengths", [(80,), MANY], ids=["one document", "many documents"])
@pytest.mark.parametrize("carry", CARRIES)
@pytest.mark.sampled(3)
def test_every_loss_by_hand(carry, lengths):
    model = double_model(**CARRIES[carry])
    tokens = stream(*lengths)
    found, stretches, drawn, kept, _ = diagnosed(model, tokens, count=12)
    assert found["windows"] == len(drawn) <= 12
    assert found["own_differs_from_first_reading"] < 1e-10

    def by_hand(state_of=lambda number: None, history=lambda window: 0, chosen=range(len(drawn))):
        return mean_over(
            loss_after(
                model,
                tokens,
                stretches[drawn[number][0]],
                drawn[number][1],
                state_of(number),
                history(drawn[number][1]),
            )
            for number in chosen
        )

    own = by_hand(history=lambda window: window)
    assert found["own_loss"] == pytest.approx(own, rel=1e-10)
    zeroed = by_hand()
    assert found["zeroed"]["loss"] == pytest.approx(zeroed, rel=1e-10)
    assert found["zeroed"]["above_own"] == pytest.approx(zeroed - own, abs=1e-10)
    other, _ = donors(stretches, drawn, seed=0)
    swapped = by_hand(lambda number: kept.states[other[number]])
    assert found["other"]["loss"] == pytest.approx(swapped, rel=1e-10)
    assert swapped != pytest.approx(own, rel=1e-6)
    enough = [number for number, (_, window) in enumerate(drawn) if window >= 2]
    assert [point["windows"] for point in found["history"]] == [0, 1, 2]
    whole = by_hand(history=lambda window: window, chosen=enough)
    for point in found["history"]:
        less = by_hand(history=lambda window, point=point: point["windows"], chosen=enough)
        assert point["loss"] == pytest.approx(less, rel=1e-10)
        assert point["above_own"] == pytest.approx(less - whole, abs=1e-10)


@pytest.mark.parametrize("options", [{"carry": "memory"}, {}], ids=["memory", "pooled"])
def test_a_model_with_a_memory_of_its_own(options):
    """XLNet: states that hold counts beside vectors."""
    model = attach(build("xlnet", "causal-lm"), window=WINDOW, **options)
    found, *_ = diagnosed(model, stream(60, 30, 20))
    assert found["own_differs_from_first_reading"] < 1e-4
    assert [point["distance"] for point in found["gradient_norms"]] == [1, 2]
    assert all(point["norm"] > 0 for point in found["gradient_norms"])


def test_zeroed_is_a_reading_of_single_windows():
    model = double_model()
    tokens = stream(*MANY)
    found, _, drawn, _, scores = diagnosed(model, tokens)
    alone = score(model, tokens, rows=4, device=CPU, reset_every=1)
    later = scores.window > 0
    assert len(drawn) == len({*zip(scores.document[later], scores.window[later], strict=True)})
    assert found["zeroed"]["loss"] == pytest.approx(alone.nll[later].mean(), rel=1e-12)
    assert found["own_loss"] == pytest.approx(scores.nll[later].mean(), rel=1e-12)


def test_the_whole_past_as_history_is_the_own_state():
    model = double_model()
    tokens = stream(*[4 * WINDOW + 1] * 5)
    found, _, drawn, _, _ = diagnosed(model, tokens, history=3)
    assert {window for _, window in drawn} == {1, 2, 3}
    # Only the last windows have a history of three, and it is all they have.
    *some, last = found["history"]
    assert last["above_own"] == pytest.approx(0, abs=1e-12) and last["low"] is not None
    assert all(abs(point["above_own"]) > 1e-6 for point in some)


def test_more_history_than_there_is():
    found, *_ = diagnosed(double_model(), stream(*[3 * WINDOW] * 4), history=9)
    assert found["history"] == [] and found["gradient_norms"] == []
    assert found["zeroed"]["above_own"] != 0


@pytest.mark.parametrize("carry", CARRIES)
def test_gradient_norms_against_finite_differences(carry):
    model = double_model(**CARRIES[carry])
    tokens = stream(6 * WINDOW, 4 * WINDOW + 3)
    history = 3
    found, stretches, drawn, _, _ = diagnosed(model, tokens, history=history)
    chosen = [place for place in drawn if place[1] >= history]
    expected = {distance: [] for distance in range(1, history + 1)}
    generator = torch.Generator().manual_seed(0)
    checked = False
    for stretch_number, window in chosen:
        stretch, state = stretches[stretch_number], None
        with torch.no_grad():
            for before in range(window - history, window):
                ids, _, _ = window_of(model, tokens, stretch, before)
                _, state = model.step(Window(ids), state)
                distance = window - before
                expected[distance].append(
                    gradient(model, tokens, stretch, window, state, distance - 1)
                )
                if not checked:
                    # Along one direction the difference of two losses is the gradient's part.
                    slope, _ = expected[distance][-1]
                    ((name, value),) = state.tensors.items()
                    step = torch.randn(value.shape, generator=generator, dtype=value.dtype)
                    losses = [
                        loss_after(
                            model,
                            tokens,
                            stretch,
                            window,
                            replace(state, tensors={name: value + sign * 1e-6 * step}),
                            distance - 1,
                        )[0]
                        for sign in (1, -1)
                    ]
                    difference = float(losses[0] - losses[1]) / 2e-6
                    assert difference == pytest.approx(float((slope * step).sum()), rel=1e-4)
            checked = True
    assert checked
    for point in found["gradient_norms"]:
        norms = [float(slope.norm()) / count for slope, count in expected[point["distance"]]]
        assert point["norm"] == pytest.approx(np.mean(norms), rel=1e-6)
    assert [point["distance"] for point in found["gradient_norms"]] == [1, 2, 3]


@torch.enable_grad()
def gradient(model, tokens, stretch, window, state, windows_between):
    """d loss / d state, where the state is read some windows before the loss; and the targets."""
    ((name, value),) = state.tensors.items()
    leaf = value.detach().requires_grad_()
    before, model.settings = model.settings, model.settings.replace(detach_state=False)
    loss, count = loss_after(
        model, tokens, stretch, window, replace(state, tensors={name: leaf}), windows_between
    )
    model.settings = before
    return torch.autograd.grad(loss, leaf)[0], count


@pytest.mark.parametrize("carry", ["learned start", "tokens, learned start"])
@pytest.mark.parametrize("lengths", [(400,), MANY], ids=["one document", "many documents"])
def test_a_state_that_is_ignored(carry, lengths):
    """A map that multiplies by zero gives every window, the first too, the same vector."""
    model = double_model(**CARRIES[carry])
    with torch.no_grad():
        model.recurrence.map[-1].weight.zero_()
    found, *_ = diagnosed(model, stream(*lengths))
    for part in (found["zeroed"], found["other"]):
        assert part["above_own"] == part["low"] == part["high"] == 0
    for part in found["history"]:  # read in batches of other windows, so rounded otherwise
        assert max(map(abs, (part["above_own"], part["low"], part["high"]))) < 1e-13
    assert all(point["norm"] == 0 for point in found["gradient_norms"])
    assert "makes no clear difference" in state_sentence(found)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.1, 0.2, "is used"),
        (-0.1, 0.2, "makes no clear difference"),
        (-0.2, -0.1, "does harm"),
        (None, None, "was tested on too few windows for a verdict"),
    ],
)
def test_the_verdict_is_the_intervals(low, high, said):
    part = {"above_own": 0.1234, "low": low, "high": high}
    state = {"windows": 1234, "zeroed": part, "other": part, "other_is": "another document"}
    sentence = state_sentence({**state, "history": []})
    assert f"the state {said}. The loss, in nats per token on 1,234 windows," in sentence
    assert "changes by +0.1234" in sentence and sentence.endswith("another document's.")


@pytest.mark.parametrize(
    ("above", "said"),
    [
        ([0.5, 0.04, 0.01], "A history of 1 window gives nine tenths of the gain."),
        ([0.5, 0.4, 0.3], "The model uses more than 2 windows of history."),
        ([-0.1, 0.0, 0.0], "another document's."),
    ],
)
def test_how_far_the_memory_reaches(above, said):
    part = {"above_own": 0.1, "low": 0.05, "high": 0.15}
    state = {"windows": 9, "zeroed": part, "other": part, "other_is": "another document"}
    history = [{"windows": n, "above_own": value} for n, value in enumerate(above)]
    assert state_sentence({**state, "history": history}).endswith(said)


def test_another_documents_state_is_another_documents():
    tokens = stream(*MANY)
    _, stretches, drawn, _, _ = diagnosed(double_model(), tokens)
    other, kind = donors(stretches, drawn, seed=0)
    assert kind == "another document"
    for (stretch, _), donor in zip(drawn, other, strict=True):
        assert stretches[drawn[donor][0]].document != stretches[stretch].document
    assert other != donors(stretches, drawn, seed=1)[0]


def test_in_one_document_a_far_windows_state_stands_in():
    stretches = [Segment(0, 0, 60 * WINDOW)]
    drawn = [(0, window) for window in range(1, 60)]
    other, kind = donors(stretches, drawn, seed=0)
    assert kind == f"the same document, {FAR} windows off or farthest"
    assert all(abs(drawn[donor][1] - drawn[n][1]) >= FAR for n, donor in enumerate(other))
    few = [(0, 1), (0, 2), (0, 3)]
    other, _ = donors(stretches, few, seed=0)
    assert other[0] == 2 and other[1] in (0, 2) and other[2] == 0


@pytest.mark.parametrize("lengths", [(60,), (60, 40, 30)], ids=["one document", "several"])
def test_with_resets_too_another_document_is_another_document(lengths):
    """A reset makes several stretches of one document: those are not other documents."""
    model = double_model()
    found, stretches, drawn, _, _ = diagnosed(model, stream(*lengths), reset_every=3)
    assert len(stretches) > len(lengths) and found["own_differs_from_first_reading"] < 1e-10
    other, kind = donors(stretches, drawn, seed=0)
    documents = [stretches[stretch].document for stretch, _ in drawn]
    if len(lengths) == 1:
        assert found["other_is"] == kind and kind.startswith("the same document")
        assert all(donor != number for number, donor in enumerate(other))
    else:
        assert kind == "another document"
        assert all(documents[donor] != own for own, donor in zip(documents, other, strict=True))


def test_drawn_windows_have_a_past_and_targets():
    mask = np.zeros(100, bool)
    mask[[3, 30, 31, 90]] = True  # windows 0, 4, 4 and 12
    tokens = stream(100, scored=mask)
    stretches = segments_to_score(tokens, double_model().settings, None)
    assert drawn_windows(tokens, stretches, WINDOW, 0, 400, 0) == [(0, 4), (0, 12)]
    found, *_ = diagnosed(double_model(), tokens)
    assert found["windows"] == 2 and found["units"] == 1 and np.isfinite(found["own_loss"])
    assert found["other"]["low"] is None
    everything = drawn_windows(stream(100), stretches, WINDOW, 0, 400, 0)
    assert everything == [(0, window) for window in range(1, 15)]
    some = drawn_windows(stream(100), stretches, WINDOW, 0, 5, 0)
    assert len(some) == 5 and some == sorted(some) and set(some) <= set(everything)
    parts = segments_to_score(tokens, double_model().settings, 4)
    drawn = drawn_windows(stream(100), parts, WINDOW, 0, 400, 0)
    assert all(window % 4 for _, window in drawn) and len(drawn) == 11


def test_the_target_at_a_windows_edge_counts_for_the_window_that_scores_it():
    mask = np.zeros(40, bool)
    mask[2 * WINDOW] = True  # the last target of window 1
    tokens = stream(40, scored=mask)
    stretches = segments_to_score(tokens, double_model().settings, None)
    assert drawn_windows(tokens, stretches, WINDOW, 0, 9, 0) == [(0, 1)]
    # At overlap 2 the first window scores targets 1 to 7, the next ones five each: 12 is the last of
    # window 1, and window 2 reads it again without scoring it.
    mask[:] = False
    mask[12] = True
    stretches = segments_to_score(tokens, double_model(overlap=2).settings, None)
    assert drawn_windows(tokens, stretches, WINDOW, 2, 9, 0) == [(0, 1)]


def test_diagnosing_leaves_the_model_as_it_was():
    model = double_model(detach_state=True)
    before = model.settings
    diagnosed(model, stream(60))
    assert model.settings is before
    assert all(parameter.grad is None for parameter in model.parameters())
