"""What a call reads belongs to the call: settings, switches and signatures."""

import dataclasses
import threading

import pytest
import torch

import holdover
from carried_kinds import KeyValueTail
from holdover import RecurrenceConfig
from tiny import attach, build, tokens


@pytest.mark.parametrize("where", ["another thread", "after the with"])
def test_a_backward_recomputes_as_its_forward_ran(where):
    """On CUDA autograd recomputes in a thread of its own, whose switches are the defaults."""
    model, ids = attach(build("gpt2")), tokens(2, 30)
    expected = model(ids, labels=ids).loss
    expected.backward()
    gradient = model.recurrence.layer_logits.grad.clone()
    model.zero_grad()
    model.compile_step(backend="aot_eager")
    with model.uncompiled():
        loss = model(ids, labels=ids, recompute="window").loss
        if where == "another thread":
            errors = []

            def backward():
                try:
                    loss.backward()
                except Exception as error:  # shown below
                    errors.append(error)

            thread = threading.Thread(target=backward)
            thread.start()
            thread.join()
            assert not errors, errors
    if where == "after the with":
        loss.backward()
    torch.testing.assert_close(model.recurrence.layer_logits.grad, gradient)


def test_a_stream_goes_on_with_the_settings_it_began_with():
    model, prompt = attach(build("gpt2")), tokens(1, 20)
    with model.reading(window=6):
        expected = list(model.stream(prompt, max_new_tokens=8, do_sample=False))
        stream = model.stream(prompt, max_new_tokens=8, do_sample=False)
    assert list(stream) == expected
    with model.reading(window=6):
        window = model.open_window()
        window.feed(tokens(1, 6))
    assert window.close().owner["window"] == 6


def test_contexts_may_end_in_any_order():
    model = attach(build("gpt2"))

    def reading():
        with model.reading(window=6):
            yield

    generator = reading()
    next(generator)
    with model.disable_recurrence():
        assert list(generator) == []
        assert not model.enabled
    assert model.enabled and model.settings.window == 9


def test_a_reading_adopts_its_own_state():
    model = attach(build("holdover_xl"), carry="memory")
    for how in ({"memory_length": 20}, {"window": 5}):
        with model.reading(**how):
            model.adopt(model(tokens(1, 30)).state)


def test_checkpointing_can_be_enabled_inside_a_reading():
    model = attach(build("gpt2"))
    with model.reading(window=6):
        model.gradient_checkpointing_enable()
        assert model.recompute == "window" and model.settings.window == 6
    assert model.recompute == "window" and model.settings.window == 9


def test_configurations_of_0_1_0_open_beside_registered_kinds():
    old = {"window": 9, "carry": "memory", "slots": 1, "insert_layer": 2, "memory_length": None}
    expected = RecurrenceConfig.from_dict(old)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings:
        TRAINING_ONLY = frozenset()
        slots: int = 4

    class Kind(KeyValueTail):
        pass

    Kind.Settings = Settings
    holdover.register_carry("four_slots", Kind)
    try:
        assert RecurrenceConfig.from_dict(old) == expected
    finally:
        from holdover.carries.kinds import KIND_SETTINGS

        del holdover.CARRIES["four_slots"], KIND_SETTINGS["four_slots"]


def test_reader_settings_of_0_1_0_open():
    from holdover.questions.options import QAOptions, ReaderRecurrence

    for carry in ("tokens", "none"):
        old = {"window": 99, "carry": carry, "mix_layers": "last", "map_hidden": [768]}
        assert ReaderRecurrence.from_dict(old).carry == carry
        options = QAOptions.of(model="bert", data="x.json", recurrence=old)
        assert options.recurrence.window == 99


def test_a_kind_must_not_rename_shared_settings():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings:
        TRAINING_ONLY = frozenset()
        overlap: int = 3

    class Kind(KeyValueTail):
        pass

    Kind.Settings = Settings
    with pytest.raises(ValueError, match="has the fields overlap"):
        holdover.register_carry("shared_field", Kind)


def test_dataclasses_replace_changes_any_field():
    config = RecurrenceConfig(window=9, slots=3)
    assert dataclasses.replace(config, window=6) == config.replace(window=6)
    assert dataclasses.replace(config, slots=2).slots == 2


def test_a_forward_that_another_library_wrapped_stays_wrapped():
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    class Counts(ModelHook):
        calls = 0

        def pre_forward(self, module, *args, **kwargs):
            self.calls += 1
            return args, kwargs

    base, ids = build("gpt2"), tokens(1, 6)
    model, hook = attach(base), Counts()
    add_hook_to_module(base.transformer.h[0], hook)
    holdover.remove_recurrence(model)
    base(ids)
    assert hook.calls == 1

    classifier = build("gpt2", "sequence-classification")
    for layer in classifier.transformer.h:
        add_hook_to_module(layer, ModelHook())
    model = attach(classifier)
    model(ids)
    for layer in classifier.transformer.h:
        remove_hook_from_module(layer)
    with pytest.raises(RuntimeError, match="replaced the forward of a layer"):
        model(ids)


def test_an_explicit_no_reaches_the_stock_model():
    model, ids = attach(build("gpt2")), tokens(1, 6)
    model.backbone.config.output_hidden_states = True
    with model.disable_recurrence():
        assert model(ids).hidden_states is not None
        assert model(ids, output_hidden_states=False).hidden_states is None


def test_a_session_without_a_fingerprint_of_weights_is_refused():
    from types import SimpleNamespace

    from holdover.generation.session_owner import check_fits

    model = attach(build("gpt2"))
    saved = SimpleNamespace(owner={**model.owner(), "weights": None})
    with pytest.raises(ValueError, match=r"session of another model: weights is None"):
        check_fits(saved, model, None, "text.hold")
