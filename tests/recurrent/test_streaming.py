"""Streamed equals re-fed: a window read piece by piece is the window read whole."""

import pytest
import torch

from contract_grid import GRID, OPTIONS, combinations
from tiny import BLOCKS, DECODERS, attach, build, tokens

WINDOW = 9
CLOSE = {"rtol": 2e-4, "atol": 2e-4}
STREAMED = [
    (name, label)
    for name, label in GRID
    if name in (*DECODERS, BLOCKS) and OPTIONS[label].get("carry") != "memory"
]


@combinations(STREAMED)
@pytest.mark.quick_sampled(12)
def test_pieces_are_the_whole(name, options):
    model = attach(build(name), **options)
    overlap = options.get("overlap", 0)
    ids = tokens(2, WINDOW + 2 * (WINDOW - overlap))
    with torch.no_grad():
        whole = model(ids)
    state, logits, start = None, [], 0
    for pieces in ((1, 1, 3, 1, 3), (4, 1, 1, 3), (2, 2, 2, 2, 1)):
        window = model.open_window(state, rows=2)
        room = WINDOW - window.length
        for piece in pieces:
            taken = min(piece, room)
            if taken:
                logits.append(window.feed(ids[:, start : start + taken]))
                start, room = start + taken, room - taken
        state = window.close()
    torch.testing.assert_close(torch.cat(logits, 1), whole.logits, **CLOSE)
    for key, tensor in whole.state.tensors.items():
        torch.testing.assert_close(state.tensors[key], tensor, **CLOSE)
    more = tokens(2, 12, 8)
    torch.testing.assert_close(
        model(more, state=state).logits, model(more, state=whole.state).logits, **CLOSE
    )


@pytest.mark.parametrize("options", [{}, {"carry": "tokens", "slots": 2}], ids=["pooled", "tokens"])
@pytest.mark.parametrize("name", ["gpt2", "opt", "llama"])
def test_streamed_generation_is_re_fed_generation(name, options):
    """Greedy, far past the model's positions, each token going through the model once."""
    model = attach(build(name), **options)
    prompt = tokens(1, 5)
    written, state, window, forwarded = prompt, None, model.open_window(), 0
    piece = prompt
    while written.shape[1] < 70:
        forwarded += piece.shape[1]
        token = window.feed(piece)[:, -1:].argmax(-1)
        written = torch.cat([written, token], 1)
        if window.length == WINDOW:
            state = window.close()
            window = model.open_window(state)
        piece = token
    assert forwarded == written.shape[1] - 1
    with torch.no_grad():
        logits = model(written[:, :-1]).logits
    again = logits[:, prompt.shape[1] - 1 :].argmax(-1)
    assert torch.equal(again, written[:, prompt.shape[1] :])


def test_rows_without_a_past_stream_beside_rows_with_one():
    model = attach(build("llama"))
    first, second = tokens(2, WINDOW, 3), tokens(2, 5, 4)
    state = model(first).state.reset(torch.tensor([True, False]))
    window = model.open_window(state)
    logits = torch.cat([window.feed(second[:, :2]), window.feed(second[:, 2:])], 1)
    torch.testing.assert_close(logits, model(second, state=state).logits, **CLOSE)


def test_refusals():
    model = attach(build("gpt2"))
    window = model.open_window()
    with pytest.raises(ValueError, match="The window is empty"):
        window.close()
    window.feed(tokens(1, 7))
    with pytest.raises(
        ValueError, match="The window holds 9 tokens, 7 are in it and 3 more do not fit"
    ):
        window.feed(tokens(1, 3))
    with pytest.raises(ValueError, match="cannot write a window token by token"):
        attach(build("bert")).open_window()
    uneven = attach(build("gpt2"), overlap=3)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 2:] = 0
    state = uneven(tokens(2, 9), attention_mask=mask).state
    with pytest.raises(ValueError, match="open a window for each row"):
        uneven.open_window(state)
