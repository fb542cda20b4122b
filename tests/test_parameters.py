"""How much is added, and what is trained."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import holdover
from tiny import attach, build, tokens

pytestmark = pytest.mark.quick


def test_gpt2_small_gets_388580_parameters():
    """Three hidden layers of 200 between 768 and 768, and one weight a layer: 0.31 %."""
    with torch.device("meta"):
        base = GPT2LMHeadModel(GPT2Config())
        model = holdover.add_recurrence(base, holdover.RecurrenceConfig())
    assert model.parameter_counts() == {
        "trainable": 124_439_808 + 388_580,
        "added": 388_580,
        "all": 124_439_808 + 388_580,
    }


def test_the_state_of_gpt2_small_is_three_kilobytes():
    base = GPT2LMHeadModel(GPT2Config(n_layer=1, vocab_size=50, bos_token_id=0, eos_token_id=0))
    model = holdover.add_recurrence(base, holdover.RecurrenceConfig(window=8, insert_layer=1))
    assert model(tokens(1, 20) % 50).state.nbytes == 768 * 4


def test_freezing_the_base_leaves_what_was_added(capsys):
    model = attach(build("gpt2"))
    model.freeze_base()
    counts = model.parameter_counts()
    assert counts["trainable"] == counts["added"]
    model.print_trainable_parameters()
    assert f"trainable params: {counts['added']:,} ||" in capsys.readouterr().out
    model.unfreeze_base()
    assert model.parameter_counts()["trainable"] == counts["all"]


@pytest.mark.parametrize("slots", [1, 4])
def test_more_slots_cost_no_more_map(slots):
    one = attach(build("gpt2"), slots=slots)
    assert sum(p.numel() for p in one.recurrence.map.parameters()) == 32 * 12 + 12 + 12 * 32 + 32
