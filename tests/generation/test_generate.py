"""model.generate and model.stream: transformers' own generation, through windows without end."""

import gc
import json
import logging
import string
from dataclasses import replace
from functools import cache
from itertools import islice

import psutil
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation import BaseStreamer

import holdover
from holdover.generation import generate as generation
from holdover.generation import open_window
from holdover.generation.cursor import Cursor, GenerationCache
from holdover.generation.writer import Sampler, Writer
from tiny import VOCABULARY, attach, build, tokens
from writing import OPTIONS, PROMPTS, WINDOW, Forwards, just_fits, model_of, re_fed

NAMES = ["gpt2", "opt", "llama"]
ENDLESS = {"eos_token_id": None}
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20, "top_p": 0.95}
WAYS = {
    "greedy": {"do_sample": False},
    "sampled": SAMPLED,
    "penalised": {"repetition_penalty": 1.7, "no_repeat_ngram_size": 3},
    "several": {**SAMPLED, "num_return_sequences": 3},
    "beams": {"num_beams": 4},
    "several beams": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.5},
    "sampled beams": {**SAMPLED, "num_beams": 3, "repetition_penalty": 1.2},
}


class ReFed(Cursor):
    """Reads the whole text anew for every token: slow, and plainly right."""

    ids = None

    def read(self, input_ids, attention_mask=None):
        if self.ids is None:
            self.ids = input_ids[:, :0]
            self.mask = input_ids[:, :0]
            if self.state is not None:
                copies = len(input_ids) // self.texts
                self.state = self.state.rows(torch.arange(self.texts).repeat_interleave(copies))
        new = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        self.ids = torch.cat([self.ids, input_ids], 1)
        self.mask = torch.cat([self.mask, new], 1)
        return self.model(self.ids, attention_mask=self.mask, state=self.state).logits[:, -1:]

    def reorder(self, beam_idx):
        self.ids, self.mask = self.ids[beam_idx], self.mask[beam_idx]
        if self.state is not None:
            self.state = self.state.rows(beam_idx)


def seeded(model, *args, **arguments):
    torch.manual_seed(7)
    return model.generate(*args, **arguments)


def re_feeding(model, *args, **arguments):
    """The same by transformers' same loops, the whole text through the model for every token."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation, "Cursor", ReFed)
        return seeded(model, *args, **arguments)


def streamed(model, *args, **arguments):
    torch.manual_seed(7)
    return list(model.stream(*args, **arguments))


def padded(texts):
    """Texts of different lengths as a batch, padded on the left."""
    width = max(text.shape[1] for text in texts)
    ids = [torch.nn.functional.pad(text, (width - text.shape[1], 0)) for text in texts]
    mask = [torch.arange(width)[None] >= width - text.shape[1] for text in texts]
    return {"input_ids": torch.cat(ids), "attention_mask": torch.cat(mask).long()}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sampled(2)
def test_generated_is_streamed_is_re_fed_past_the_position_limit(name, options):
    model = model_of(name, positions=just_fits(options), **options)
    for length in PROMPTS:
        prompt = tokens(1, length)
        written = model.generate(prompt, max_new_tokens=25, **ENDLESS)
        assert torch.equal(written[:, :length], prompt)
        added = written[0, length:].tolist()
        assert added == re_fed(model, prompt, 25, written=added)
        assert added == streamed(model, prompt, max_new_tokens=25, **ENDLESS)
    arguments = {"max_new_tokens": 25, **SAMPLED, **ENDLESS}
    written = seeded(model, prompt, **arguments)
    assert torch.equal(written, re_feeding(model, prompt, **arguments))
    assert written[0, length:].tolist() == streamed(model, prompt, **arguments)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("length", PROMPTS)
def test_a_token_goes_forward_once_and_once_more_in_the_overlap(length, options):
    model = model_of(**options)
    overlap = options.get("overlap", 0)
    # The last token is not read: nothing behind it is asked for.
    turns = max(0, -(-(length + 39 - WINDOW) // (WINDOW - overlap)))
    for write in (
        lambda *a, **k: model.generate(*a, **k),
        lambda *a, **k: list(model.stream(*a, **k)),
    ):
        forwards = Forwards(model)
        write(tokens(1, length), max_new_tokens=40, **ENDLESS)
        assert forwards.tokens == length + 39 + overlap * turns
    # A prompt is read once for all of its sequences.
    forwards = Forwards(model)
    model.generate(tokens(1, length), max_new_tokens=1, num_beams=4)
    assert forwards.tokens == length + overlap * max(0, -(-(length - WINDOW) // (WINDOW - overlap)))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("carry", ["pooled", "none"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick_sampled(6)
def test_inside_the_first_window_it_is_transformers_own(name, carry, way):
    model = model_of(name, window=40, carry=carry)
    batch = padded([tokens(1, 9, 3), tokens(1, 4, 4)])
    written = seeded(model, **batch, max_new_tokens=20, **way)
    with model.disable_recurrence():
        assert torch.equal(written, seeded(model, **batch, max_new_tokens=20, **way))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.sampled(3)
@pytest.mark.quick_sampled(8)
def test_every_way_across_windows_is_re_fed(options, way):
    model = model_of(**options)
    batch = padded([tokens(1, 5, 3), tokens(1, 23, 4), tokens(1, 14, 5)])
    arguments = {**batch, "max_new_tokens": 2 * WINDOW + 1, **way}
    assert torch.equal(seeded(model, **arguments), re_feeding(model, **arguments))


@pytest.mark.parametrize("name", ["opt", "llama"])
def test_beams_across_windows_are_re_fed_in_other_models_too(name):
    for options in (OPTIONS["pooled-overlap"], OPTIONS["tokens-overlap"]):
        model = model_of(name, positions=just_fits(options), **options)
        arguments = {"max_new_tokens": 25, "num_beams": 4, "num_return_sequences": 4, **ENDLESS}
        written = seeded(model, tokens(2, 12), **arguments)
        assert torch.equal(written, re_feeding(model, tokens(2, 12), **arguments))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick_sampled(4)
def test_an_uneven_batch_is_its_rows_one_by_one(name, options):
    model = model_of(name, **options)
    # Inside the first window, full ones, equal places of different windows, the same length twice.
    lengths = (1, 2, WINDOW, WINDOW + 1, 3 * WINDOW, 2, 2 + WINDOW - options.get("overlap", 0))
    texts = [tokens(1, length, 20 + length) for length in lengths]
    batch = padded(texts)
    written = model.generate(**batch, max_new_tokens=30, **ENDLESS)
    assert torch.equal(written[:, :-30], batch["input_ids"])
    for row, text in zip(written, texts, strict=True):
        added = row[-30:].tolist()
        assert added == re_fed(model, text, 30, written=added)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_state_is_continued_by_rows_at_different_places_of_their_overlap(options):
    model = model_of(**options)
    before = [tokens(1, length, 30 + length) for length in (1, 2, 14)]
    texts = [tokens(1, length, 40 + length) for length in (3, 12, 1)]
    with torch.no_grad():
        states = [model(text).state for text in before]
    state = model(**padded(before)).state.detach()
    fresh = state.reset(torch.tensor([False, True, False]))
    written = model.generate(**padded(texts), state=state, max_new_tokens=30, **ENDLESS)
    again = model.generate(**padded(texts), state=fresh, max_new_tokens=30, **ENDLESS)
    for number, text in enumerate(texts):
        added, anew = (rows[number, -30:].tolist() for rows in (written, again))
        alone = re_fed(model, text, 30, states[number], written=added)
        assert added == alone
        assert anew == (re_fed(model, text, 30, written=anew) if number == 1 else alone)
    assert (
        streamed(model, texts[0], state=states[0], max_new_tokens=30, **ENDLESS)
        == written[0, -30:].tolist()
    )
    arguments = {**padded(texts), "state": state, "max_new_tokens": 15, "num_beams": 3}
    assert torch.equal(seeded(model, **arguments), re_feeding(model, **arguments))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_an_open_window_goes_on_with_some_of_its_rows(options):
    model, index = model_of(**options), torch.tensor([2, 0, 2, 1])
    state = model(tokens(3, 14)).state.detach()
    state = state.reset(torch.tensor([False, True, False]))
    if state.tail is not None:
        state = replace(state, tail=tokens(3, 3, 9))
    for fed in (0, 1, 2):  # taken before the first piece, behind it, behind the second
        window, pieces = model.open_window(state), tokens(3, 4, 5).split([1, 1, 2], 1)
        taken = model.open_window(state.rows(index))
        for number, piece in enumerate(pieces):
            if number == fed:
                window.take_rows(index)
            logits = window.feed(piece if number < fed else piece[index])
            expected = taken.feed(piece[index])
        torch.testing.assert_close(logits, expected)
        for name, tensor in taken.close().tensors.items():
            torch.testing.assert_close(window.close().tensors[name], tensor)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_layers_may_be_mixed_at_any_place_of_an_open_window(pooling, monkeypatch):
    model, ids = model_of(pooling=pooling), tokens(2, WINDOW)
    with torch.no_grad():
        whole = model(ids).state
    for together in (1, 2, 4, 100):
        monkeypatch.setattr(open_window, "MIXED_TOGETHER", together)
        window = model.open_window(rows=2)
        for piece in ids.split([2, 1, 1, 1, 3, 1], 1):
            window.feed(piece)
        torch.testing.assert_close(window.close().tensors["summary"], whole.tensors["summary"])


def test_the_implementation_of_attention_may_change_inside_a_window():
    model, ids = model_of(insert_layer="all", slots=2), tokens(2, WINDOW, 4)
    with torch.no_grad():
        state = model(tokens(2, WINDOW)).state
        whole = model(ids, state=state).logits
    window, logits = model.open_window(state), []
    for number, piece in enumerate(ids.split([2, 1, 1, 1, 2, 1, 1], 1)):
        model.backbone.set_attn_implementation("eager" if number in (2, 5) else "sdpa")
        logits.append(window.feed(piece))
    torch.testing.assert_close(torch.cat(logits, 1), whole)


@pytest.mark.quick
def test_rows_at_the_same_place_share_a_forward():
    model = model_of(overlap=3)
    calls = []
    model.backbone.base_model.register_forward_hook(lambda *call: calls.append(call))

    def forwards(lengths, count):
        batch = padded([tokens(1, length) for length in lengths])
        model.generate(**batch, max_new_tokens=1)
        calls.clear()
        model.generate(**batch, max_new_tokens=count + 1)
        return len(calls)

    # One prompt, then one a token; no window is filled.
    assert forwards([5, 5, 5], 3) == 4
    assert forwards([5, 6, 5], 3) == 8
    # Places 3 and 9: the next token stands at 4 in both, and their next windows are one.
    apart, turns = 6, -(-34 // (WINDOW - 3))
    assert forwards([3, 9], apart) == 2 + 1 + 2 * apart
    assert forwards([3, 9], apart + 34) == 2 + 1 + 2 * apart + turns + 34


@pytest.mark.parametrize("options", [{}, {"overlap": 3}], ids=["pooled", "overlap"])
def test_rows_that_have_ended_are_padded(options):
    model = model_of(**options)
    batch = padded([tokens(1, 5, 3), tokens(1, 12, 4)])
    free = model.generate(**batch, max_new_tokens=30, **ENDLESS)
    width = batch["input_ids"].shape[1]
    # A token of the one row that the other writes later, or never.
    for eos in free[0, width + 10 : width + 14].tolist():
        written = model.generate(**batch, max_new_tokens=30, eos_token_id=eos, pad_token_id=0)
        for row, endless in zip(written[:, width:], free[:, width:], strict=True):
            found = (endless == eos).nonzero()
            end = int(found[0]) + 1 if len(found) else 30
            assert row[:end].tolist() == endless[: min(end, len(row))].tolist()
            assert bool((row[end:] == 0).all())
        arguments = {"max_new_tokens": 30, "eos_token_id": eos}
        alone = model.generate(tokens(1, 12, 4), **arguments)[0, 12:].tolist()
        assert streamed(model, tokens(1, 12, 4), **arguments) == alone
        assert torch.equal(
            seeded(model, **batch, num_beams=3, **arguments),
            re_feeding(model, **batch, num_beams=3, **arguments),
        )


class Only(LogitsProcessor):
    """Nothing but some ids; keeps the texts it was shown."""

    def __init__(self, allowed):
        self.allowed, self.texts = allowed, []

    def __call__(self, input_ids, scores):
        self.texts.append(input_ids)
        kept = torch.full_like(scores, float("-inf"))
        kept[:, self.allowed] = scores[:, self.allowed]
        return kept


class After(StoppingCriteria):
    """Stops behind a number of tokens."""

    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        done = input_ids.shape[1] >= self.length
        return torch.full(input_ids.shape[:1], done, device=input_ids.device)


class Heard(BaseStreamer):
    def __init__(self):
        self.pieces, self.ended = [], False

    def put(self, value):
        self.pieces.append(value)

    def end(self):
        self.ended = True


def test_processors_criteria_and_streamers():
    model, prompt = model_of(), tokens(1, 12)
    only = Only([7, 8, 9, 10])
    settings = {
        "logits_processor": LogitsProcessorList([only]),
        "stopping_criteria": StoppingCriteriaList([After(31)]),
        "max_new_tokens": 100,
        **SAMPLED,
    }
    heard = Heard()
    written = seeded(model, prompt, streamer=heard, **settings)
    assert written.shape == (1, 31)
    assert set(written[0, 12:].tolist()) <= {7, 8, 9, 10}
    assert torch.equal(only.texts[-1], written[:, :-1])
    assert torch.equal(torch.cat([piece.flatten() for piece in heard.pieces]), written[0])
    assert heard.ended
    assert streamed(model, prompt, **settings) == written[0, 12:].tolist()


def test_a_generation_config_is_followed():
    model, prompt = model_of(), tokens(1, 12)
    config = GenerationConfig(max_length=40, eos_token_id=None, pad_token_id=0, **SAMPLED)
    written = seeded(model, prompt, config)
    assert written.shape == (1, 40)
    arguments = {"max_new_tokens": 28, **SAMPLED, **ENDLESS}
    assert torch.equal(written, seeded(model, prompt, **arguments))
    assert streamed(model, prompt, config) == written[0, 12:].tolist()
    model.generation_config = config
    assert torch.equal(written, seeded(model, prompt))
    assert model.backbone.generation_config is config


def test_without_a_prompt_it_begins_with_the_first_token():
    model = model_of()
    first = torch.tensor([[model.backbone.config.bos_token_id]])
    assert torch.equal(model.generate(max_new_tokens=12), model.generate(first, max_new_tokens=12))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_an_output_has_scores_and_a_state_to_go_on_from(options):
    model = model_of(**options)
    batch = padded([tokens(1, 5, 3), tokens(1, 14, 4)])
    out = model.generate(
        **batch,
        max_new_tokens=20,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **ENDLESS,
    )
    assert torch.equal(out.sequences, model.generate(**batch, max_new_tokens=20, **ENDLESS))
    chosen = torch.stack(out.scores, 1).argmax(-1)
    assert torch.equal(chosen, out.sequences[:, -20:])
    assert len(out.logits) == 20
    state = out.past_key_values.close()
    read = torch.cat([batch["attention_mask"], torch.ones(2, 19, dtype=torch.long)], 1)
    with torch.no_grad():
        whole = model(out.sequences[:, :-1], attention_mask=read).state
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(state.tensors[name], tensor)
    assert (state.tail is None) == (whole.tail is None)
    more = model.generate(out.sequences[:, -1:], state=state, max_new_tokens=9, **ENDLESS)
    assert torch.equal(
        more, model.generate(out.sequences[:, -1:], state=whole, max_new_tokens=9, **ENDLESS)
    )


def test_a_state_that_is_not_of_what_was_returned_is_refused():
    model = model_of(overlap=3)
    batch = padded([tokens(1, 5, 3), tokens(1, 12, 4)])
    free = model.generate(**batch, max_new_tokens=30, **ENDLESS)[:, 12:]
    # Of the first text alone, and not at its end.
    eos = next(token for token in free[0, :25].tolist() if token not in free[1])
    arguments = {"max_new_tokens": 30, "pad_token_id": 0, "return_dict_in_generate": True}
    ended = {**arguments, "eos_token_id": eos}
    for out in (
        model.generate(**batch, **ended),
        model.generate(**batch, generation_config=GenerationConfig(**ended)),
        model.generate(**batch, **arguments, eos_token_id=[eos, VOCABULARY - 1]),
    ):
        assert out.sequences.shape == (2, 42) and out.sequences[0, -1] == 0
        with pytest.raises(ValueError, match=r"a text ended before others.*attention_mask="):
            out.past_key_values.close()
    # What the sentence says to do instead.
    mask = torch.cat([batch["attention_mask"], torch.ones(2, 30, dtype=torch.long)], 1)
    end = 12 + free[0].tolist().index(eos) + 1
    mask[0, end:] = 0
    with torch.no_grad():
        state = model(out.sequences, attention_mask=mask).state
        alone = model(out.sequences[:1, 7:end]).state
    torch.testing.assert_close(state.rows([0]).tensors["summary"], alone.tensors["summary"])
    # A text that is alone ends last, also one that ends both.
    alone = model.generate(tokens(1, 5, 3), **ended)
    assert alone.sequences[0, -1] == eos
    alone.past_key_values.close()
    # Nothing ended, or everything at the same place.
    model.generate(**batch, **arguments, eos_token_id=None).past_key_values.close()
    twins = tokens(1, 5, 3).repeat(2, 1)
    model.generate(twins, **ended).past_key_values.close()
    several = {"num_return_sequences": 2, "do_sample": True, "eos_token_id": None}
    out = model.generate(tokens(1, 5), **arguments, **several)
    assert out.past_key_values.close().batch_size == len(out.sequences) == 2
    for beams in ({"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}):
        out = model.generate(tokens(1, 5), **arguments, **beams)
        with pytest.raises(ValueError, match="no state of the returned texts: beams are cut"):
            out.past_key_values.close()


def test_criteria_of_ones_own_may_have_ended_a_text():
    class ArchitectureSpec(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.tensor([input_ids.shape[1] >= 9, False])

    model = model_of()
    arguments = {"max_new_tokens": 20, "pad_token_id": 0, "return_dict_in_generate": True}
    criteria = StoppingCriteriaList([ArchitectureSpec()])
    free = model.generate(tokens(2, 5), **arguments, stopping_criteria=criteria, **ENDLESS)
    free.past_key_values.close()  # without an end token nothing is filled up
    never = next(token for token in range(1, VOCABULARY) if token not in free.sequences)
    arguments |= {"eos_token_id": never}
    out = model.generate(tokens(2, 5), **arguments, stopping_criteria=criteria)
    assert out.sequences[0, 9:].tolist() == [0] * 16
    with pytest.raises(ValueError, match="a text ended before others"):
        out.past_key_values.close()


def test_a_cache_is_closed_once_and_read_no_more():
    model, prompt = model_of(), tokens(1, 12)
    cache = GenerationCache(Cursor(model))
    with pytest.raises(ValueError, match="Nothing was read yet"):
        cache.close()
    cache.read(prompt)
    cache.close()
    with pytest.raises(ValueError, match=r"was closed before.*first close\(\) returned"):
        cache.close()
    with pytest.raises(ValueError, match=r"was closed and can read nothing more.*state="):
        cache.read(prompt)


def test_a_stream_is_lazy_and_can_be_left():
    model, prompt = model_of(), tokens(1, 12)
    forwards = Forwards(model)
    stream = model.stream(prompt, max_new_tokens=1000, **ENDLESS)
    assert forwards.tokens == 0
    begun = list(islice(stream, 5))
    assert forwards.tokens == 12 + 4
    # In between the model is free, also for another stream.
    other = list(model.stream(prompt, max_new_tokens=5, **ENDLESS))
    assert other == begun
    assert [*begun, *islice(stream, 10)] == re_fed(model, prompt, 15)
    stream.close()
    assert next(stream, None) is None


def test_stop_strings_end_a_stream_too(caplog):
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    letters = string.ascii_letters + string.digits[: VOCABULARY - 52]
    by_letter = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    by_letter.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=by_letter)
    model, prompt = model_of(), tokens(1, 12)
    last = re_fed(model, prompt, 15)[-1]
    arguments = {"stop_strings": [letters[last]], "tokenizer": tokenizer, **ENDLESS}
    written = model.generate(prompt, max_new_tokens=40, **arguments)[0, 12:].tolist()
    assert written[-1] == last and len(written) <= 15
    assert list(model.stream(prompt, max_new_tokens=40, **arguments)) == written
    config = GenerationConfig(max_new_tokens=40, stop_strings=[letters[last]])
    with caplog.at_level("WARNING"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("transformers"), "propagate", True)
        model.generation_config.eos_token_id = None
        assert list(model.stream(prompt, config, tokenizer=tokenizer)) == written
    assert config.stop_strings == [letters[last]] and "generation_config" not in caplog.text
    model.generation_config.stop_strings = [letters[last]]
    assert list(model.stream(prompt, max_new_tokens=40, tokenizer=tokenizer)) == written
    none = {"max_new_tokens": 40, "stop_strings": None}
    assert len(list(model.stream(prompt, tokenizer=tokenizer, **none))) == 40


@pytest.mark.quick
def test_disabled_it_is_the_stock_model():
    model, prompt = model_of("llama"), tokens(1, 12)
    base = build("llama").double()
    stock = base.generate(prompt, max_new_tokens=20)
    with model.disable_recurrence():
        assert torch.equal(model.generate(prompt, max_new_tokens=20), stock)
        with pytest.raises(ValueError, match="A state was given while the recurrence is disabled"):
            model.generate(prompt, state=model_of("llama")(prompt).state)
        with pytest.raises(ValueError, match="the recurrence is disabled"):
            model.stream(prompt)
    assert not torch.equal(model.generate(prompt, max_new_tokens=20), stock)


def test_a_saved_model_keeps_its_defaults(tmp_path):
    base = build("gpt2")
    base.generation_config.update(do_sample=True, top_k=7)
    attach(base).save_pretrained(tmp_path)
    again = holdover.RecurrentModel.from_pretrained(tmp_path)
    assert again.generation_config.top_k == 7
    assert again.generation_config.eos_token_id == 2
    # Saved before there was a generate.
    (tmp_path / "generation_config.json").unlink()
    older = holdover.RecurrentModel.from_pretrained(tmp_path)
    assert older.generation_config.eos_token_id == 2
    assert older.generate(tokens(1, 12), max_new_tokens=20).shape[1] > 12
    encoder = attach(build("bert"))
    assert not encoder.can_generate()
    encoder.save_pretrained(tmp_path / "encoder")
    assert not (tmp_path / "encoder" / "generation_config.json").exists()
    assert "eos_token_id" not in json.loads((tmp_path / "config.json").read_text())
    holdover.RecurrentModel.from_pretrained(tmp_path / "encoder")


def test_refusals():
    model, prompt = model_of(), tokens(1, 3)
    refused = {
        "inputs_embeds": torch.zeros(1, 3, 32),
        "past_key_values": GenerationCache(Cursor(model)),
        "position_ids": prompt,
        "cache_implementation": "static",
        "prefill_chunk_size": 4,
        "assistant_model": build("gpt2"),
        "prompt_lookup_num_tokens": 3,
        "guidance_scale": 1.5,
        "negative_prompt_ids": prompt,
        "penalty_alpha": 0.6,
        "num_beam_groups": 2,
        "output_hidden_states": True,
        "output_attentions": True,
    }
    for name, value in refused.items():
        with pytest.raises(ValueError, match=f"A recurrent model cannot generate with {name}: "):
            model.generate(prompt, max_new_tokens=3, **{name: value})
    with pytest.raises(ValueError, match="cannot generate with prompt_lookup_num_tokens"):
        model.generate(prompt, GenerationConfig(prompt_lookup_num_tokens=3))
    model.generate(prompt, max_new_tokens=1, guidance_scale=1.0, output_attentions=False)
    with pytest.raises(ValueError, match="not used by the model: .'top_kk'"):
        model.generate(prompt, top_kk=3)
    with pytest.raises(ValueError, match="There is nothing to read"):
        model.generate(prompt[:, :0])
    with pytest.raises(ValueError, match="two dimensions"):
        model.stream(prompt[0])
    with pytest.raises(ValueError, match="vocabulary has the ids 0 to 60"):
        model.stream(prompt + VOCABULARY)
    with pytest.raises(ValueError, match="The state has 2 rows and the input 1"):
        model.generate(prompt, state=model(tokens(2, 9)).state.detach())
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    with pytest.raises(ValueError, match="The prompt ends in padding"):
        model.generate(tokens(2, 3), attention_mask=mask, max_new_tokens=3)
    with pytest.raises(ValueError, match="call model.eval.. first"):
        model_of().train().generate(prompt)
    with pytest.raises(ValueError, match="BertForMaskedLM cannot write"):
        model_of("bert").generate(prompt)
    for several in ({"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}):
        with pytest.raises(ValueError, match="tokens of one text, and there are 2 rows"):
            model.stream(prompt, max_new_tokens=3, **several)
    with pytest.raises(ValueError, match="there are 2 rows"):
        model.stream(tokens(2, 3), max_new_tokens=3)
    with pytest.raises(ValueError, match="takes no streamer"):
        model.stream(prompt, streamer=Heard())


def test_padding_that_is_no_id_of_the_model_is_refused_when_it_is_read():
    class First(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.tensor([input_ids.shape[1] >= 7, False])

    model = model_of()
    unknown = {"pad_token_id": VOCABULARY + 3, "eos_token_id": VOCABULARY + 3, "max_new_tokens": 5}
    assert model.generate(tokens(2, 5), **unknown).shape == (2, 10)
    with pytest.raises(ValueError, match="hold the id 64, but this model's vocabulary"):
        model.generate(tokens(2, 5), **unknown, stopping_criteria=StoppingCriteriaList([First()]))


class Cost:
    """Operations that a device would be handed, and readings that would wait for it."""

    def __init__(self):
        self.operations = self.readings = 0

    def of(self, write, few=4, many=36):
        """A token's, among many of one window: (operations, readings)."""
        write(1)  # what is done once for a model
        counts = []
        for count in (few, many):
            self.operations = self.readings = 0
            with CountedOperations(self), CountedReadings(self):
                write(count)
            counts.append((self.operations, self.readings))
        return [(b - a) / (many - few) for a, b in zip(*counts, strict=True)]


class CountedOperations(TorchDispatchMode):
    READ_BACK = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero")

    def __init__(self, cost):
        super().__init__()
        self.cost = cost

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.cost.operations += 1
        self.cost.readings += func.overloadpacket.__name__ in self.READ_BACK
        return func(*args, **(kwargs or {}))


class CountedReadings(TorchFunctionMode):
    """Those that are no operation where the device is the host."""

    def __init__(self, cost):
        super().__init__()
        self.cost = cost

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.cost.readings += func in (torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy)
        return func(*args, **(kwargs or {}))


def of_twelve_layers(name):
    layers = "n_layer" if name == "gpt2" else "num_hidden_layers"
    return build(name, **{layers: 12, "max_position_embeddings": 120})


def generating(model, prompt):
    chosen = {"do_sample": False, "pad_token_id": 0, **ENDLESS}
    return lambda count: model.generate(prompt, max_new_tokens=count, **chosen)


@cache
def cost_of_transformers(name):
    """A token's operations in the stock model and in its generation, and the latter's readings."""
    stock, prompt = of_twelve_layers(name), tokens(1, 4)

    @torch.no_grad()
    def forward(count):
        cache = DynamicCache()
        stock(prompt, past_key_values=cache)
        for _ in range(count):
            stock(prompt[:, :1], past_key_values=cache)

    one, _ = Cost().of(forward)
    return one, *Cost().of(generating(stock, prompt))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", {}),
        ("gpt2", {"insert_layer": "all", "slots": 3}),
        ("gpt2", {"overlap": 3, "pooling": "max"}),
        ("gpt2", {"carry": "tokens", "slots": 2}),
        ("gpt2", {"carry": "none"}),
        ("opt", {}),
        ("llama", {"insert_layer": "all", "slots": 3}),
    ],
    ids=["gpt2", "everywhere", "overlap", "tokens", "none", "opt", "llama"],
)
@pytest.mark.sampled(4)
def test_inside_a_window_a_token_costs_what_it_costs_transformers(name, options):
    """Counted, not timed: on a GPU a small model's token is nothing but launches and waiting."""
    model = attach(of_twelve_layers(name), window=100, **options)
    behind = tokens(1, 104)  # a window and a bit: there is a state

    def write(count):
        writer = Writer(model, sampler=Sampler(temperature=0))
        writer.read(behind)
        list(islice(writer, count))

    one, own, own_readings = cost_of_transformers(name)
    operations, readings = Cost().of(generating(model, behind))
    # Choosing a token takes a few; the layers are mixed now and then.
    assert operations <= one + 25
    assert operations <= 1.05 * own
    # Whether to stop is asked once for a token, as by transformers.
    assert readings <= min(own_readings, 1)
    for ways in (lambda count: streamed(model, behind, max_new_tokens=count, **ENDLESS), write):
        operations, readings = Cost().of(ways)
        assert operations <= one + 25 and readings <= 1


class Weighing(StoppingCriteria):
    """The most memory the process ever had, every so many tokens."""

    def __init__(self):
        self.process, self.peak, self.peaks = psutil.Process(), 0, {}

    def __call__(self, input_ids, scores, **kwargs):
        length = input_ids.shape[1]
        if length % 100 == 0:
            self.peak = max(self.peak, self.process.memory_info().rss)
            self.peaks[length] = self.peak
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.nightly
def test_memory_does_not_grow_with_what_was_written():
    # Kept, each token would take half a kilobyte: five megabytes, more than the hundredth below.
    sizes = {"n_positions": 256, "n_layer": 1, "n_head": 1, "n_embd": 64}
    model = attach(build("gpt2", **sizes), window=256, insert_layer=1)
    weighing = Weighing()
    gc.collect()
    written = model.generate(
        tokens(1, 10),
        max_length=12_000,
        stopping_criteria=StoppingCriteriaList([weighing]),
        **ENDLESS,
    )
    assert written.shape == (1, 12_000)
    assert weighing.peaks[12_000] < 1.01 * weighing.peaks[2_000]
