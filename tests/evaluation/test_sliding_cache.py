"""A sliding cache: with room for everything it is the whole context, with none it is windows alone."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from holdover.evaluation.sliding_cache import Room, bytes_a_token, frequencies, read_with_cache
from holdover.text.tokens import Tokens
from holdover.tokenization.byte_encoder import ByteEncoder
from tiny import build

# Models turn keys in single precision.
ROTARY = {"rtol": 1e-4, "atol": 1e-6}


def text(*lengths):
    ids = np.random.default_rng(0).integers(0, 30, sum(lengths)).astype(np.uint16)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    return Tokens(ids, bounds, {}, ByteEncoder())


def by_hand(model, ids, seen_from):
    """The sum of -log p of each token given those from `seen_from(its predecessor)` on."""
    total = 0.0
    for last in range(len(ids) - 1):
        given = ids[None, seen_from(last) : last + 1]
        logits = model(input_ids=given, use_cache=False).logits[0, -1]
        total += float(cross_entropy(logits, ids[last + 1]))
    return total


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@torch.no_grad()
def test_of_every_room_it_reads_what_it_has_room_for(name):
    # One layer: what a kept token is made of lies before what is kept only in the layers above.
    model = build(name, num_hidden_layers=1).eval().double()
    # Two and one of the first length: read side by side.
    tokens = text(11, 2, 11, 14, 11)
    places = ((0, 11), (11, 13), (13, 24), (24, 38), (38, 49))
    for kept in (0, 3, 100):
        found = read_with_cache(model, tokens, window=5, kept=kept, rows=2)
        assert found.tokens == [10, 1, 10, 13, 10]
        for nats, (start, stop) in zip(found.nats, places, strict=True):
            ids = torch.from_numpy(tokens.ids[start:stop].astype("int64"))
            expected = by_hand(model, ids, lambda last: max(last // 5 * 5 - kept, 0))  # noqa: B023
            assert nats == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kept", [0, 3])
@torch.no_grad()
def test_first_tokens_stand_right_in_front_of_the_last_ones(kept):
    """In one layer, keys and values of a token are of that token alone: those that are kept and the
    window, as one text."""
    model = build("llama", num_hidden_layers=1).eval().double()
    tokens = text(23)
    ids = torch.from_numpy(tokens.ids.astype("int64"))
    total = 0.0
    for begin in range(0, 22, 5):
        end = min(begin + 5, 22)
        seen = [*range(2), *range(max(begin - kept, 2), begin)] if begin else []
        given = ids[[*seen, *range(begin, end)]]
        logits = model(input_ids=given[None]).logits[0, len(seen) :]
        total += float(cross_entropy(logits, ids[begin + 1 : end + 1], reduction="sum"))
    found = read_with_cache(model, tokens, window=5, kept=kept, first=2)
    assert found.nats[0] == pytest.approx(total, abs=1e-5)


@torch.no_grad()
def test_keys_that_move_are_those_that_were_read_there():
    """In deep models too: attention sees distances alone."""
    model = build("llama").eval().double()
    ids = torch.from_numpy(text(30).ids.astype("int64"))[None]
    found = {}
    for place in (0, 13):
        places = torch.arange(place, place + 9)[None]
        found[place] = model(input_ids=ids[:, :9], position_ids=places, use_cache=True)
    room = Room(0, 9, frequencies(model))
    for layer, other in zip(
        found[0].past_key_values.layers, found[13].past_key_values.layers, strict=True
    ):
        torch.testing.assert_close(room._turned(layer.keys, 13), other.keys, **ROTARY)
        torch.testing.assert_close(room._turned(other.keys, -13), layer.keys, **ROTARY)


@torch.no_grad()
def test_with_room_for_all_deep_models_have_the_whole_context():
    model = build("llama").eval().double()
    ids = torch.from_numpy(text(17).ids.astype("int64"))
    logits = model(input_ids=ids[None]).logits[0, :-1]
    whole = float(cross_entropy(logits, ids[1:], reduction="sum"))
    assert read_with_cache(model, text(17), window=4, kept=99).nats[0] == pytest.approx(whole)
    assert read_with_cache(model, text(17), window=4, kept=2).nats[0] != pytest.approx(whole)


def test_a_token_costs_what_its_cache_holds():
    model = build("llama").eval()
    out = model(input_ids=torch.arange(7)[None], use_cache=True)
    held = sum(l.keys.nbytes + l.values.nbytes for l in out.past_key_values.layers)  # noqa: E741
    assert held == 7 * bytes_a_token(model.config, torch.float32)


def test_models_whose_keys_cannot_be_moved_are_refused():
    with pytest.raises(ValueError, match="rotary positions, and gpt2 has none"):
        read_with_cache(build("gpt2"), text(9), window=4, kept=2)
    with pytest.raises(ValueError, match="one set of frequencies, and gpt_neox has other ones"):
        read_with_cache(build("gpt_neox"), text(9), window=4, kept=2)
    with pytest.raises(ValueError, match="and mistral slides its own window"):
        read_with_cache(build("mistral"), text(9), window=4, kept=2)
    model = build("llama")
    model.config.rope_parameters["rope_type"] = "dynamic"
    with pytest.raises(ValueError, match=r"rotates by text length \(dynamic\)"):
        read_with_cache(model, text(9), window=4, kept=2)
