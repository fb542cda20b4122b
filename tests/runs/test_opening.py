"""Language models by name: what is opened, what is attached to it, and what is refused."""

import json

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from holdover import RecurrenceConfig, add_recurrence
from holdover.runs.models import model_folder, numbered, open_model, random_model, recurrence_of
from runs import SHAPE, best_of, command, losses_of, refusal, train, weights_of
from tiny import BLOCKS, CONFIGS, DECODERS, VOCABULARY

POOLED = RecurrenceConfig(window=8, overlap=2, map_hidden=(12,))
PLAIN = RecurrenceConfig(window=8, carry="none")


@pytest.fixture
def stock(tmp_path):
    """The folder of a model that knows nothing of holdover."""
    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": None}
    # Positions for the window of models that nothing was said about.
    values = {"vocab_size": 256, **special, **SHAPE, "n_positions": 320}
    GPT2LMHeadModel(GPT2Config(**values)).save_pretrained(tmp_path / "stock")
    return tmp_path / "stock"


def same_weights(model, other):
    found, wanted = model.state_dict(), other.state_dict()
    return found.keys() == wanted.keys() and all(
        torch.equal(found[name], wanted[name]) for name in wanted
    )


def random(recurrence=POOLED, seed=0, **changes):
    return random_model("gpt2", {**SHAPE, **changes}, 256, recurrence, seed)


# Opening


def test_a_stock_model_without_a_recurrence_is_read_plainly(stock):
    model = open_model(str(stock))
    assert model.settings.carry == "none"
    assert recurrence_of(str(stock)) is None
    assert same_weights(model.backbone, GPT2LMHeadModel.from_pretrained(stock))


def test_a_recurrence_is_attached_to_a_stock_model(stock):
    model = open_model(str(stock), POOLED)
    assert model.settings == POOLED
    assert same_weights(model.backbone, GPT2LMHeadModel.from_pretrained(stock))


def test_a_whole_holdover_model(tmp_path):
    saved = random()
    saved.save_pretrained(tmp_path / "whole")
    for asked in (None, POOLED):
        opened = open_model(str(tmp_path / "whole"), asked)
        assert opened.settings == POOLED
        assert same_weights(opened, saved)
    assert RecurrenceConfig.from_dict(recurrence_of(str(tmp_path / "whole"))) == POOLED


def test_added_weights_alone(stock, tmp_path):
    saved = add_recurrence(GPT2LMHeadModel.from_pretrained(stock), POOLED)
    saved.save_pretrained(tmp_path / "added", only_added=True)
    assert not (tmp_path / "added" / "model.safetensors").exists()
    for asked in (None, POOLED):
        opened = open_model(str(tmp_path / "added"), asked)
        assert opened.settings == POOLED
        assert same_weights(opened, saved)


def test_weights_are_in_memory_of_their_own(stock, tmp_path):
    """Where a matrix begins changes the last bits of its products: always at the same place, then."""
    random().save_pretrained(tmp_path / "whole")
    for folder in (stock, tmp_path / "whole"):
        for parameter in open_model(str(folder)).parameters():
            assert parameter.data_ptr() % 64 == 0
            assert parameter.requires_grad


def test_weights_stay_tied(stock):
    model = open_model(str(stock), POOLED)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_half_precision_is_opened_in_single(stock, tmp_path):
    GPT2LMHeadModel.from_pretrained(stock).bfloat16().save_pretrained(tmp_path / "half")
    model = open_model(str(tmp_path / "half"), POOLED)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_folder_of_a_run_stands_for_its_best(tmp_path):
    run = train(tmp_path, validate_every=100, keep=9)
    best = best_of(run)
    assert model_folder(str(run)) == str(run / f"checkpoint-{best}")
    wanted = weights_of(run, best)
    found = open_model(str(run)).state_dict()
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())
    # Without the link, or with one that leads nowhere: the last.
    (run / "best").unlink()
    assert model_folder(str(run)) == str(run / "checkpoint-10")
    (run / "best").symlink_to("checkpoint-77")
    assert model_folder(str(run)) == str(run / "checkpoint-10")
    assert open_model(str(run)).settings.carry == "pooled"


def test_checkpoints_are_counted_not_spelt(tmp_path):
    for name in ("checkpoint-9", "checkpoint-10", "checkpoint-100", "checkpoint-x", ".partial-1"):
        (tmp_path / name).mkdir()
    assert [path.name for path in numbered(tmp_path)] == [
        "checkpoint-9",
        "checkpoint-10",
        "checkpoint-100",
    ]


def test_a_plain_checkpoint_is_given_a_recurrence(tmp_path):
    saved = random(PLAIN)
    saved.save_pretrained(tmp_path / "plain")
    for asked in (POOLED, PLAIN.replace(window=16)):
        model = open_model(str(tmp_path / "plain"), asked)
        assert model.settings == asked
        assert same_weights(model.backbone, saved.backbone)
        ids = torch.randint(0, 256, (2, 30))
        assert model(ids, labels=ids).loss.isfinite()


def test_another_recurrence_is_refused_by_the_fields_that_differ(tmp_path):
    random().save_pretrained(tmp_path / "whole")
    with pytest.raises(ValueError, match="trained with another recurrence") as refused:
        open_model(str(tmp_path / "whole"), POOLED.replace(window=16, slots=3))
    said = str(refused.value)
    assert "window is 8 in the model and 16 was asked for" in said
    assert "slots is 1 in the model and 3 was asked for" in said
    assert "overlap is" not in said and "map_hidden" not in said


def test_how_to_train_may_be_another_than_before(tmp_path):
    random().save_pretrained(tmp_path / "whole")
    asked = POOLED.replace(horizon=3, recompute="window", lower_layers="per_window")
    model = open_model(str(tmp_path / "whole"), asked)
    assert model.settings == asked
    assert (model.horizon, model.recompute) == (3, "window")
    model.save_pretrained(tmp_path / "again")
    assert open_model(str(tmp_path / "again")).settings == asked
    assert open_model(str(tmp_path / "whole"), POOLED.replace(detach_state=True)).horizon == 1


@pytest.mark.parametrize("name", ["config.json", "holdover_config.json"])
@pytest.mark.parametrize("content", ["", "[]", b"\xff\xff"])
def test_damaged_descriptions(name, content, tmp_path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match="damaged"):
        recurrence_of(str(tmp_path))


# Random models


def test_random_models_follow_their_seed():
    assert same_weights(random(seed=1), random(seed=1))
    assert not same_weights(random(seed=1), random(seed=2))


@pytest.mark.parametrize(
    "other",
    [PLAIN, POOLED.replace(slots=3), RecurrenceConfig(window=8, carry="tokens", map_hidden=(12,))],
    ids=["none", "slots", "tokens"],
)
def test_twins_share_their_base(other):
    torch.manual_seed(99)
    assert same_weights(random().backbone, random(other).backbone)


def test_random_models_of_a_folder(stock, tmp_path):
    of_stock = random_model(str(stock), {"n_layer": 3}, 256, POOLED, 0)
    assert of_stock.backbone.config.n_layer == 3 and of_stock.backbone.config.n_embd == 16
    assert not torch.equal(
        of_stock.get_input_embeddings().weight, open_model(str(stock)).get_input_embeddings().weight
    )
    random().save_pretrained(tmp_path / "whole")
    again = random_model(str(tmp_path / "whole"), {}, 256, POOLED, 0)
    assert same_weights(again, random())


def test_the_shape_reaches_the_model():
    model = random(n_layer=3, resid_pdrop=0.25)
    assert len(model.backbone.transformer.h) == 3
    assert model.backbone.transformer.h[0].mlp.dropout.p == 0.25
    assert model.vocabulary == 256
    assert random_model("gpt2", SHAPE, 300, POOLED, 0).vocabulary == 300


def test_settings_that_follow_from_the_shape_follow_it():
    shape = {"n_layer": 1, "d_model": 32, "n_head": 4, "d_inner": 32}
    xlnet = random_model("xlnet", shape, 256, RecurrenceConfig(carry="memory", window=4), 0)
    assert xlnet.backbone.config.d_head == 8
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 4, "intermediate_size": 32}
    llama = random_model("llama", shape, 256, POOLED, 0)
    assert llama.backbone.model.layers[0].self_attn.q_proj.weight.shape == (32, 32)


@pytest.mark.parametrize("name", [*DECODERS, "xlnet", BLOCKS])
def test_a_random_model_of_every_type_is_opened_again(name, tmp_path):
    kind = "holdover_xl" if name == BLOCKS else name
    model = random_model(kind, CONFIGS[name], VOCABULARY, PLAIN, 0).eval()
    model.save_pretrained(tmp_path / "saved")
    again = open_model(str(tmp_path / "saved")).eval()
    ids = torch.arange(8)[None]
    assert torch.equal(model(ids).logits, again(ids).logits)


def test_what_cannot_be_opened_again_is_not_made(tmp_path):
    """A width of heads that does not fit the model's was refused after the training, by what read it."""
    shape = {"n_layer": 1, "d_model": 32, "n_head": 4, "d_inner": 32}
    none = RecurrenceConfig(carry="none", window=4)
    with pytest.raises(ValueError, match=r"no xlnet model can be made with .*d_head=16"):
        random_model("xlnet", {**shape, "d_head": 16}, 256, none, 0)
    random_model("xlnet", shape, 256, none, 0).save_pretrained(tmp_path / "one")
    assert open_model(str(tmp_path / "one")).backbone.config.d_head == 8
    with pytest.raises(ValueError, match=r"no xlnet model can be made with n_head=8"):
        random_model(str(tmp_path / "one"), {"n_head": 8}, 256, none, 0)


# On the command line


def test_training_goes_on_from_a_run_with_its_recurrence_and_tokenizer(tmp_path):
    first = train(tmp_path, overlap=2, max_steps=3)
    plain = {"from_scratch": None, "shape": None, "tokenizer": None}
    run = train(
        tmp_path, model=first, window=None, output=tmp_path / "second", max_steps=2, **plain
    )
    about = json.loads((run / "holdover_run.json").read_text())["options"]["recurrence"]
    assert (about["window"], about["overlap"], about["carry"]) == (8, 2, "pooled")
    assert torch.equal(
        weights_of(run, 0)["recurrence.map.0.weight"],
        weights_of(first, 3)["recurrence.map.0.weight"],
    )


def test_training_refuses_another_recurrence_than_the_models(tmp_path, capsys):
    first = train(tmp_path, overlap=2, max_steps=1)
    plain = {"from_scratch": None, "shape": None, "tokenizer": None}
    said = refusal(
        capsys, command(tmp_path, model=first, overlap=3, output=tmp_path / "second", **plain)
    )
    assert "overlap is 2 in the model and 3 was asked for" in said


def test_training_a_plain_run_further_with_a_state(tmp_path):
    first = train(tmp_path, recurrence="none", max_steps=1)
    plain = {"from_scratch": None, "shape": None, "tokenizer": None}
    run = train(tmp_path, model=first, output=tmp_path / "second", max_steps=2, **plain)
    found, wanted = weights_of(run, 0), weights_of(first, 1)
    assert set(wanted) < set(found)
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())


def test_a_stock_model_continues_exactly(stock, tmp_path):
    """Its first life reads other files than its second one."""
    common = {"model": stock, "from_scratch": None, "shape": None, "save_every": 2, "overlap": 2}
    expected = train(tmp_path, output=tmp_path / "expected", max_steps=8, **common)
    run = train(tmp_path, max_steps=3, **common)
    train(tmp_path, max_steps=8, resume=True, **common)
    assert losses_of(run) == losses_of(expected)
    found, wanted = weights_of(run, 8), weights_of(expected, 8)
    assert all(torch.equal(found[name], weight) for name, weight in wanted.items())
