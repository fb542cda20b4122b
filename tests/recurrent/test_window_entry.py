"""model(windows=...) and model(input_ids) are one validated entry."""

from dataclasses import replace

import pytest
import torch

import holdover
from holdover.windows import IGNORED, Window, shift_left
from tiny import attach, build, tokens

WINDOW = 9


def cut(ids, overlap=0):
    targets = shift_left(ids, None)
    spans = holdover.cut(ids.shape[1], WINDOW, overlap)
    windows = []
    for span in spans:
        kept = targets[:, span.start : span.stop].clone()
        kept[:, : span.keep_start - span.start] = IGNORED
        windows.append(Window(ids[:, span.start : span.stop], targets=kept))
    return windows


@pytest.mark.parametrize("overlap", [0, 4])
def test_both_entries_give_the_same_loss_and_state(overlap):
    model, ids = attach(build("gpt2"), overlap=overlap), tokens(2, 31)
    by_text = model(ids, labels=ids)
    by_windows = model(windows=cut(ids, overlap))
    torch.testing.assert_close(by_windows.loss, by_text.loss)
    # Number 3 of the reproduced bugs: the tail was that of the call before.
    more = tokens(2, 12, seed=5)
    expected = model(more, state=by_text.state).logits
    assert torch.equal(model(more, state=by_windows.state).logits, expected)
    if overlap:
        assert torch.equal(by_windows.state.tail, by_text.state.tail)


def test_the_tail_of_padded_rows_is_their_own():
    model, ids = attach(build("gpt2"), overlap=3), tokens(2, 9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 2:] = False
    targets = torch.where(mask, shift_left(ids, None), IGNORED)
    state = model(windows=[Window(ids, mask=mask, targets=targets)]).state
    assert state.tail.tolist() == [ids[0, 6:].tolist(), [-1, *ids[1, :2].tolist()]]


def test_disabled_the_windows_are_read_by_the_stock_model():
    model, ids = attach(build("gpt2")), tokens(2, 27)
    windows = cut(ids)
    recurrent = model(windows=windows).loss
    with model.disable_recurrence():
        stock = model(windows=windows)
        alone = [model(w.input_ids).logits for w in windows]
    assert stock.state is None
    losses = [
        torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), w.targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        for logits, w in zip(alone, windows, strict=True)
    ]
    scored = sum(int((w.targets != IGNORED).sum()) for w in windows)
    torch.testing.assert_close(stock.loss, sum(losses) / scored)
    assert abs(float((stock.loss - recurrent).detach())) > 1e-3


@pytest.mark.parametrize(
    "argument",
    [
        {"labels": tokens(2, 27)},
        {"attention_mask": torch.zeros(2, 27)},
        {"document_starts": torch.zeros(2, 27, dtype=torch.bool)},
        {"return_logits": True},
        {"nonsense": 3},
    ],
    ids=lambda argument: next(iter(argument)),
)
def test_arguments_that_windows_bring_themselves_are_refused(argument):
    model = attach(build("gpt2"))
    with pytest.raises(TypeError, match=next(iter(argument))):
        model(windows=cut(tokens(2, 27)), **argument)


def test_windows_that_cannot_be_read_are_refused():
    model, windows = attach(build("gpt2")), cut(tokens(2, 27))
    with pytest.raises(TypeError, match="give one of them"):
        model(tokens(2, 9), windows=windows)
    with pytest.raises(ValueError, match="windows is empty"):
        model(windows=[])
    with pytest.raises(ValueError, match="Window 2 has no targets"):
        model(windows=[windows[0], replace(windows[1], targets=None)])
    with pytest.raises(ValueError, match=r"Window 3 has input_ids of shape \(3, 9\)"):
        model(windows=[*windows[:2], *cut(tokens(3, 9))])
    with pytest.raises(ValueError, match="question-answering model"):
        attach(build("bert", "question-answering"))(windows=windows)


def test_a_state_of_another_model_or_batch_is_refused():
    model, ids = attach(build("gpt2")), tokens(2, 27)
    other = attach(build("gpt2"), slots=2)
    with pytest.raises(ValueError, match="slots is 2 in the state"):
        model(windows=cut(ids), state=other(ids).state)
    with pytest.raises(ValueError, match="The state has 3 rows and the input 2"):
        model(windows=cut(ids), state=model(tokens(3, 9)).state)


def test_none_and_false_ask_for_nothing():
    model, ids = attach(build("gpt2")), tokens(1, 12)
    expected = model(ids).logits
    assert torch.equal(model(ids, inputs_embeds=None, output_attentions=False).logits, expected)


def test_recomputed_windows_read_with_the_settings_of_their_call():
    """Number 5 of the reproduced bugs: gradients were off where a backward left `reading`."""
    model, ids = attach(build("gpt2")), tokens(2, 40)

    def gradient(recompute):
        model.zero_grad()
        with model.reading(overlap=4):
            loss = model(ids, labels=ids, recompute=recompute).loss
        loss.backward()
        return model.recurrence.layer_logits.grad.clone()

    expected = gradient("none")
    assert expected.abs().max() > 1e-6
    torch.testing.assert_close(gradient("window"), expected)
