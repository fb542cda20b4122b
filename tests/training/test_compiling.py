"""What a compiler is told by the version that it is."""

import pytest
from torch._inductor import config

from holdover.recurrent.compile import compiler_options


def test_a_compiler_that_rounds_what_it_saves_is_told_nothing(monkeypatch):
    class Newer:
        emulate_precision_casts = False
        emulate_precision_casts_on_saved_tensors = True

    monkeypatch.setattr("torch._inductor.config", Newer)
    assert compiler_options() == {}


def test_an_older_one_rounds_as_the_step_was_written(monkeypatch):
    class Older:
        emulate_precision_casts = False

    monkeypatch.setattr("torch._inductor.config", Older)
    assert compiler_options() == {"emulate_precision_casts": True}


@pytest.mark.parametrize("option", ["emulate_precision_casts", "fallback_random"])
def test_the_options_are_known_to_torch(option):
    assert hasattr(config, option)
