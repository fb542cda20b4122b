"""Windows cut beforehand, read as they are: the same losses, states and gradients as texts."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from holdover import OutputRequest
from holdover.text.window_loader import Walk, training_rows, whole_documents
from holdover.unrolling import unroll
from holdover.windows import IGNORED
from streams import stream
from tiny import DECODERS, attach, build, tokens

CARRIES = {
    "pooled": {},
    "slots": {"slots": 2, "insert_layer": "all", "start": "learned"},
    "tokens": {"carry": "tokens", "slots": 2},
    "none": {"carry": "none"},
}
# Every model meets every state, and each of both is there with and without an overlap.
MEETING = [
    (name, carry, 3 * ((place + number) % 2))
    for place, name in enumerate(DECODERS)
    for number, carry in enumerate(CARRIES)
]


def two_rows():
    """[2, 40] ids of three documents a row, where they begin, and the targets of all positions."""
    ids = tokens(2, 40)
    starts = torch.zeros_like(ids, dtype=torch.bool)
    starts[0, [0, 13, 31]] = True
    starts[1, [0, 22, 24]] = True
    return ids, starts


def as_tokens(ids, starts):
    """The same documents as a stream, one row after another."""
    found = stream(1)
    lengths = []
    for row in starts:
        begins = [*row.nonzero().flatten().tolist(), row.numel()]
        lengths += [b - a for a, b in pairwise(begins)]
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    values = ids.flatten().numpy().astype(np.uint16)
    return type(found)(values, bounds, found.counts, found.encoder)


def rows_of(data):
    """Three documents a row."""
    stretches = whole_documents(data)
    return [stretches[:3], stretches[3:]]


@pytest.mark.parametrize(("name", "carry", "overlap"), MEETING)
@pytest.mark.sampled(2)
@pytest.mark.quick_sampled(6)
def test_windows_give_what_texts_give(name, carry, overlap):
    model = attach(build(name), overlap=overlap, **CARRIES[carry]).double().train(False)
    ids, starts = two_rows()
    # A document's last token is read too in a text; its window then holds one token more.
    walk = Walk(as_tokens(ids, starts), rows_of(as_tokens(ids, starts)), 9, overlap)
    losses, grads = [], []
    for full_width in (False, True):
        walk.full_width = full_width
        batch = walk.batch(0, len(walk))
        model.zero_grad()
        loss = model(windows=batch.windows(), num_items_in_batch=batch.scored).loss
        loss.backward()
        losses.append(loss.item())
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert batch.scored == 2 * 40 - 6
    expected = 0.0
    model.zero_grad()
    for row in range(2):
        begins = [*starts[row].nonzero().flatten().tolist(), 40]
        for start, stop in pairwise(begins):
            part = ids[row : row + 1, start:stop]
            # Inputs are all but the last token of a document, as in the walk.
            output = model(part[:, :-1], shift_labels=part[:, 1:], num_items_in_batch=74)
            output.loss.backward()
            expected += output.loss.item()
    # These two take their softmax in single precision, whatever they are given.
    near = 1e-5 if name in ("gpt_neo", "gemma3_text") else 1e-9
    assert losses == pytest.approx([expected] * 2, abs=near)
    reference = [p.grad for p in model.parameters() if p.grad is not None]
    for found in grads:
        for one, other in zip(found, reference, strict=True):
            torch.testing.assert_close(one, other, atol=near, rtol=1e-7)


@pytest.mark.quick
def test_the_state_goes_on_from_batch_to_batch():
    model = attach(build("gpt2"), overlap=2).double()
    data = stream(60, 11, 45)
    walk = Walk(data, training_rows(data, 2, seed=0, epoch=0), 9, 2)
    whole = walk.batch(0, len(walk))
    with torch.no_grad():
        at_once = model(windows=whole.windows(), num_items_in_batch=1)
        total, state = 0.0, None
        for batch in walk.batches(3):
            output = model(windows=batch.windows(), state=state, num_items_in_batch=1)
            total, state = total + output.loss.item(), output.state
    assert total == pytest.approx(at_once.loss.item(), abs=1e-9)
    for name, tensor in state.tensors.items():
        torch.testing.assert_close(tensor, at_once.state.tensors[name])


@pytest.mark.parametrize("name", ["gpt2", "gemma3_text", "opt", "xlnet"])
def test_nll_of_each_target_sums_to_the_loss(name):
    model = attach(build(name)).eval()
    data = stream(40)
    windows = Walk(data, training_rows(data, 1, 0, 0), 9).batch(0, 5).windows()
    with torch.no_grad():
        step = partial(model.step, wanted=OutputRequest(model.task))
        sums = [out["loss"] for out, _ in unroll(step, windows)]
        for logits in (False, True):
            wanted = OutputRequest(model.task, nll=True, logits=logits)
            each = [out for out, _ in unroll(partial(model.step, wanted=wanted), windows)]
            for window, out, total in zip(windows, each, sums, strict=True):
                assert (out["nll"] > 0).equal(window.targets != IGNORED)
                torch.testing.assert_close(out["nll"].sum(), total)
                assert ("logits" in out) == logits


def test_reading_otherwise_than_trained():
    model = attach(build("gpt2"), window=12)
    before = model.settings
    ids = tokens(1, 30)
    with torch.no_grad():
        own = model(ids).logits
        with model.reading(window=12, overlap=4):
            assert model.settings.pool_positions == "non_overlap"
            other = model(ids).logits
        with model.reading(window=6):
            assert model.settings.window == 6
        with pytest.raises(ValueError, match="positions"), model.reading(window=1000):
            pass
        with pytest.raises(ValueError, match="smaller than window"), model.reading(overlap=12):
            pass
        assert model.settings == before
        torch.testing.assert_close(model(ids).logits, own, rtol=0, atol=0)
    assert not torch.equal(own, other)


@pytest.mark.quick
def test_a_model_wants_ids_or_windows():
    model = attach(build("gpt2"))
    with pytest.raises(TypeError, match="input_ids, or windows"):
        model()
