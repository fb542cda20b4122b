"""Streaming writes what re-feeding the whole text at every token would write, and reads it once."""

from itertools import islice

import pytest
import torch

from holdover.generation.writer import Sampler, Writer
from tiny import VOCABULARY, attach, build, tokens
from writing import OPTIONS, PROMPTS, WINDOW, Forwards, just_fits, model_of, re_fed

pytestmark = pytest.mark.quick


def stream(model, input_ids, *, max_new_tokens, state=None, **chosen):
    """The tokens that a writer adds to a text."""
    writer = Writer(model, state, Sampler(**chosen))
    writer.read(input_ids)
    return islice(writer, max_new_tokens)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("name", ["gpt2", "opt", "llama"])
def test_streamed_is_re_fed_past_the_position_limit(name, options):
    model = model_of(name, positions=just_fits(options), **options)
    for length in PROMPTS:
        prompt = tokens(1, length)
        streamed = list(stream(model, prompt, max_new_tokens=25, temperature=0))
        assert streamed == re_fed(model, prompt, 25, written=streamed)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("length", PROMPTS)
def test_a_token_goes_forward_once_and_once_more_in_the_overlap(length, options):
    model = model_of(**options)
    overlap = options.get("overlap", 0)
    forwards, writer = Forwards(model), Writer(model)
    writer.read(tokens(1, length))
    for _ in islice(writer, 40):
        pass
    # The last token is read only when something behind it is asked for.
    assert forwards.tokens == length + 39 + overlap * (writer.windows - 1)
    writer.close()
    assert forwards.tokens == length + 40 + overlap * (writer.windows - 1)
    stride = WINDOW - overlap
    assert writer.windows == 1 + -(-(length + 40 - WINDOW) // stride)


def test_a_whole_window_is_one_forward_and_leaves_no_logits():
    # Memory tokens: closing an open window would be a forward of its own.
    model = attach(build("gpt2"), carry="tokens", slots=2)
    calls = []
    model.backbone.base_model.register_forward_hook(lambda *call: calls.append(call))
    writer = Writer(model)
    writer.read(tokens(1, 5 * WINDOW))
    assert len(calls) == writer.windows == 5
    assert writer.window is not None and writer.window.length == WINDOW
    assert writer.logits is not None
    assert writer.logits.untyped_storage().nbytes() == VOCABULARY * 4


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_seed_writes_the_same_text_however_the_prompt_is_cut(options):
    model, prompt = model_of(**options), tokens(1, 31)

    def written(sizes, seed):
        writer = Writer(model, sampler=Sampler(0.9, 20, 0.95, torch.Generator().manual_seed(seed)))
        for piece in prompt.split(sizes, 1):
            writer.read(piece)
        return list(islice(writer, 30))

    whole = written([31], 7)
    assert whole == written([31], 7)
    assert whole == written([1, 8, 2, 20], 7)
    assert whole == written([1] * 31, 7)
    assert whole != written([31], 8)
    settings = {"temperature": 0.9, "top_k": 20, "top_p": 0.95}
    generator = torch.Generator().manual_seed(7)
    assert whole == list(stream(model, prompt, max_new_tokens=30, generator=generator, **settings))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_state_is_continued(options):
    model = model_of(**options)
    for before in (2, 14):  # also fewer tokens than the overlap
        with torch.no_grad():
            state = model(tokens(1, before, 3)).state
        for length in (2, 2 * WINDOW):
            prompt = tokens(1, length)
            streamed = list(stream(model, prompt, state=state, max_new_tokens=20, temperature=0))
            assert streamed == re_fed(model, prompt, 20, state, written=streamed)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_closed_writer_leaves_the_state_of_everything_read_and_written(options):
    model, prompt = model_of(**options), tokens(1, 12)
    writer = Writer(model, sampler=Sampler(temperature=0))
    assert writer.close() is None
    writer.read(prompt)
    text = torch.cat([prompt, torch.tensor([list(islice(writer, 11))])], 1)
    state = writer.close()
    assert writer.close() is state
    with torch.no_grad():
        whole = model(text).state
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(state.tensors[name], tensor)
    assert (state.tail is None) == (whole.tail is None)
    # What was written is still known: the text goes on in a new window.
    assert writer.next_token() == re_fed(model, text, 1)[0]
    following = list(islice(writer, 5))
    again = Writer(model, state, Sampler(temperature=0))
    again.read(torch.tensor([re_fed(model, text, 1)]))
    assert following == list(islice(again, 5))


def test_reading_and_writing_take_turns():
    model, first, second = model_of(), tokens(1, 7), tokens(1, 30, 4)
    writer = Writer(model, sampler=Sampler(temperature=0))
    writer.read(first)
    said = list(islice(writer, 6))
    writer.read(second)
    text = torch.cat([first, torch.tensor([said]), second], 1)
    assert list(islice(writer, 12)) == re_fed(model, text, 12)


def test_choosing():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    generator = torch.Generator().manual_seed(0)

    def chosen(**settings):
        sampler = Sampler(**settings, generator=generator)
        return {int(sampler(logits)) for _ in range(200)}

    assert chosen(temperature=0) == {1}
    assert chosen(temperature=5) == {0, 1, 2, 3}
    assert chosen(top_k=2) == {1, 3}
    assert chosen(top_p=0.5) == {1}
    # Temperature comes first, as in transformers: the same share then has more tokens in it.
    assert chosen(temperature=50, top_p=0.5) == {1, 3}


def test_refusals():
    model, prompt = model_of(), tokens(1, 3)
    with pytest.raises(ValueError, match="give the text at least one token"):
        stream(model, prompt[:, :0], max_new_tokens=3)
    with pytest.raises(ValueError, match="read at least one token first"):
        Writer(model).next_token()
    with pytest.raises(ValueError, match=r"one text .* have the shape \(2, 3\)"):
        stream(model, tokens(2, 3), max_new_tokens=3)
    with pytest.raises(ValueError, match=r"one text .* have the shape \(3,\)"):
        stream(model, prompt[0], max_new_tokens=3)
    with pytest.raises(ValueError, match="temperature=-0.1 must not be negative"):
        stream(model, prompt, max_new_tokens=3, temperature=-0.1)
    with pytest.raises(ValueError, match="top_k.* strictly positive integer"):
        stream(model, prompt, max_new_tokens=3, top_k=0)
    with pytest.raises(ValueError, match="vocabulary has the ids 0 to 60"):
        stream(model, prompt + VOCABULARY, max_new_tokens=3)
    with pytest.raises(ValueError, match="The state has 2 rows and the input 1"):
        stream(model, prompt, state=model(tokens(2, 9)).state.detach(), max_new_tokens=3)
    with pytest.raises(ValueError, match=r"call model\.eval\(\) first"):
        stream(model_of().train(), prompt, max_new_tokens=3)
    with pytest.raises(ValueError, match="cannot write a window token by token"):
        stream(model_of("bert"), prompt, max_new_tokens=3)
    with model.disable_recurrence(), pytest.raises(ValueError, match="recurrence is disabled"):
        stream(model, prompt, max_new_tokens=3)
    assert list(stream(model, prompt, max_new_tokens=0)) == []
