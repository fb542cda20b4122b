"""Bad input gets one clear sentence."""

import pytest
import torch
import transformers

import holdover
from holdover import RecurrenceConfig, add_recurrence
from holdover.backbones.hooks import is_attached
from tiny import VOCABULARY, attach, build, tokens


def sentence(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?", ")"))
    return text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": 0}, "window=0 must be a whole number of at least 1"),
        ({"window": 9.5}, "window=9.5 must be a whole number"),
        ({"window": 8, "overlap": 8}, "overlap=8 must be smaller than window=8"),
        ({"overlap": -1}, "overlap=-1"),
        ({"slots": 0}, "slots=0"),
        ({"insert_layer": 0}, 'or the word "all"'),
        ({"insert_layer": "top"}, 'or the word "all"'),
        ({"pooling": "average"}, "'mean', 'max', 'last', 'attention', 'fixed-key'"),
        ({"horizon": 0}, "horizon=0"),
        ({"map_hidden": (0,)}, "map_hidden=0"),
    ],
)
def test_configurations(settings, words):
    with pytest.raises(ValueError, match="must be|is not a choice") as error:
        RecurrenceConfig(**settings)
    assert words in sentence(error)


def test_an_unknown_key_names_its_neighbours():
    with pytest.raises(ValueError, match="did you mean pooling") as error:
        RecurrenceConfig.from_dict({"poling": "max"})
    sentence(error)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": 49}, "which has 48 positions: use a window of at most 48"),
        (
            {"window": 45, "carry": "tokens", "slots": 2},
            "plus 4 memory positions does not fit GPT2LMHeadModel, which has 48 positions: "
            "use a window of at most 44",
        ),
        ({"window": 9, "insert_layer": 4}, "has layers 1 to 3"),
        ({"window": 9, "carry": "memory"}, "gpt2 has none"),
        ({"window": 9, "carry": "kv"}, "'pooled', 'tokens', 'memory', 'blocks', 'none'"),
        # A switch that would do nothing.
        ({"window": 9, "carry": "tokens", "pooling": "max"}, "no effect with carry='tokens'"),
        ({"window": 9, "carry": "none", "slots": 3}, "slots=3 has no effect"),
        ({"window": 9, "memory_length": 3}, "memory_length=3 has no effect with carry='pooled'"),
    ],
)
def test_configurations_that_do_not_fit_the_model(settings, words):
    base = build("gpt2")
    with pytest.raises(ValueError, match="fit|range|none|no effect|kind of state") as error:
        add_recurrence(base, RecurrenceConfig(**settings))
    assert words in sentence(error)
    # A refusal leaves nothing behind.
    assert not is_attached(base)


def test_models_that_cannot_be_attached():
    with pytest.raises(TypeError, match="takes a Hugging Face transformers model, not Linear"):
        add_recurrence(torch.nn.Linear(2, 2))
    config = transformers.BloomConfig(hidden_size=8, n_layer=1, n_head=2, vocab_size=VOCABULARY)
    with pytest.raises(
        ValueError, match=r"no row for the architecture 'bloom'.*gpt2.*add a row"
    ) as error:
        add_recurrence(transformers.BloomModel(config))
    assert "xlnet" in sentence(error)
    pretraining = transformers.ElectraForPreTraining(build("electra").config)
    with pytest.raises(ValueError, match="does not know the head of ElectraForPreTraining"):
        add_recurrence(pretraining)
    checkpointing = build("gpt2")
    checkpointing.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="gradient_checkpointing_disable"):
        add_recurrence(checkpointing, RecurrenceConfig(window=9))
    flex = build("llama")
    flex.config._attn_implementation = "flex_attention"
    with pytest.raises(ValueError, match=r"set_attn_implementation\('sdpa'\)"):
        add_recurrence(flex, RecurrenceConfig(window=9))


def test_attaching_twice_is_refused():
    base = build("gpt2")
    model = attach(base)
    with pytest.raises(ValueError, match="has a recurrence already"):
        add_recurrence(model)
    with pytest.raises(ValueError, match="Another recurrence is attached"):
        add_recurrence(base)
    holdover.remove_recurrence(model)
    attach(base)
    with pytest.raises(TypeError, match="takes what add_recurrence returned"):
        holdover.remove_recurrence(base)


def test_inputs():
    model = attach(build("gpt2"))
    ids = tokens(2, 20)
    state = model(ids).state
    bare, masked = attach(build("gpt2", "bare")), attach(build("bert"))
    cases = [
        (lambda: model(torch.zeros(2, 0, dtype=torch.long)), "There is nothing to read"),
        (lambda: model(ids, attention_mask=torch.zeros_like(ids)), "There is nothing to read"),
        (lambda: model(ids[0]), "must have two dimensions"),
        (lambda: model(ids + VOCABULARY), f"vocabulary has the ids 0 to {VOCABULARY - 1}"),
        (lambda: model(ids - 30), "hold the id -"),
        (lambda: model(ids, attention_mask=torch.ones(2, 3)), "they must agree"),
        (lambda: model(ids, labels=ids[:, 1:]), "labels have shape"),
        (lambda: model(ids, labels=ids, horizon=0), "horizon=0 must be"),
        (lambda: model(ids, labels=ids, recompute="windows"), "is not a choice"),
        (lambda: bare(ids, labels=ids), "it has no head"),
        (lambda: masked(ids, shift_labels=ids), "for next-token heads"),
        (lambda: model(ids[:1], state=state), "The state has 2 rows and the input 1"),
        (lambda: model(ids, state=state.to("meta")), "The state is on meta and the input on cpu"),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words) as error:
            call()
        sentence(error)
    with pytest.raises(TypeError, match=r"must be a holdover.State"):
        model(ids, state=torch.zeros(2))
    with pytest.raises(TypeError, match="position_ids: a recurrent model restarts positions"):
        model(ids, position_ids=ids)
    with model.disable_recurrence():
        with pytest.raises(ValueError, match="recurrence is disabled"):
            model(ids, state=state)
        with pytest.raises(ValueError, match="recurrence is disabled"):
            model.encode(ids)
        with pytest.raises(ValueError, match="recurrence is disabled"):
            model.open_window()
        model(ids, use_cache=False)


def test_a_loss_that_is_no_number_stops_before_an_update():
    model = attach(build("gpt2"))
    ids = tokens(1, 30)
    with torch.no_grad():
        model.recurrence.map[0].weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="loss of window 2 of 4 is nan") as error:
        model(ids, labels=ids)
    sentence(error)
