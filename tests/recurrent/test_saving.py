"""Saving the whole model, only what was added, and sharing it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

import holdover
from tiny import attach, build, outputs_of, tokens

pytestmark = pytest.mark.quick


@pytest.fixture
def saved_base(tmp_path):
    build("gpt2").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def test_only_what_was_added_and_the_bases_name(saved_base, tmp_path):
    base = GPT2LMHeadModel.from_pretrained(saved_base)
    model = attach(base, slots=2)
    model.save_pretrained(tmp_path / "added", only_added=True)
    files = {path.name for path in (tmp_path / "added").iterdir()}
    assert files == {"holdover_config.json", "holdover.safetensors"}
    about = json.loads((tmp_path / "added" / "holdover_config.json").read_text())
    assert about["base_model_name_or_path"] == str(saved_base)
    size = (tmp_path / "added" / "holdover.safetensors").stat().st_size
    assert size < 4 * model.parameter_counts()["added"] + 2048
    again = holdover.RecurrentModel.from_pretrained(tmp_path / "added")
    ids = tokens(2, 25)
    torch.testing.assert_close(outputs_of(again, ids), outputs_of(model, ids))
    given = holdover.RecurrentModel.from_pretrained(
        tmp_path / "added", base_model=GPT2LMHeadModel.from_pretrained(saved_base)
    )
    torch.testing.assert_close(outputs_of(given, ids), outputs_of(model, ids))


def test_what_was_added_needs_its_base(saved_base, tmp_path):
    nameless = attach(build("gpt2"))
    with pytest.raises(ValueError, match="no name to refer to"):
        nameless.save_pretrained(tmp_path / "added", only_added=True)
    model = attach(GPT2LMHeadModel.from_pretrained(saved_base))
    model.save_pretrained(tmp_path / "added", only_added=True)
    with pytest.raises(
        ValueError, match="belong to GPT2LMHeadModel, and base_model is OPTForCausalLM"
    ):
        holdover.RecurrentModel.from_pretrained(tmp_path / "added", base_model=build("opt"))
    (tmp_path / "added" / "holdover.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="save was interrupted"):
        holdover.RecurrentModel.from_pretrained(tmp_path / "added")
    model.save_pretrained(tmp_path / "whole")
    with pytest.raises(ValueError, match="whole model"):
        holdover.RecurrentModel.from_pretrained(tmp_path / "whole", base_model=build("gpt2"))


def test_a_missing_base_is_named(saved_base, tmp_path):
    model = attach(GPT2LMHeadModel.from_pretrained(saved_base))
    model.save_pretrained(tmp_path / "added", only_added=True)
    about = json.loads((tmp_path / "added" / "holdover_config.json").read_text())
    about["base_model_name_or_path"] = str(tmp_path / "gone")
    (tmp_path / "added" / "holdover_config.json").write_text(json.dumps(about))
    with pytest.raises(OSError, match="could not be loaded .*base_model="):
        holdover.RecurrentModel.from_pretrained(tmp_path / "added")


def test_precision_is_chosen_when_loading(tmp_path):
    model = attach(build("llama"))
    model.save_pretrained(tmp_path)
    half = holdover.RecurrentModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    ids = tokens(1, 20)
    assert torch.allclose(outputs_of(half, ids).float(), outputs_of(model, ids), atol=0.5)


def test_tied_weights_stay_tied(tmp_path):
    model = attach(build("gpt2"))
    model.save_pretrained(tmp_path)
    again = holdover.RecurrentModel.from_pretrained(tmp_path)
    backbone = again.backbone
    assert backbone.lm_head.weight is backbone.transformer.wte.weight
    assert again.parameter_counts() == model.parameter_counts()


def test_auto_classes_are_untouched(saved_base):
    """Attaching registers nothing and changes nothing of what the base saves."""
    base = AutoModelForCausalLM.from_pretrained(saved_base)
    attached = attach(base)
    back = holdover.remove_recurrence(attached)
    assert type(back) is GPT2LMHeadModel
    assert type(AutoModelForCausalLM.from_pretrained(saved_base)) is GPT2LMHeadModel
    assert (
        base.config.to_dict() == AutoModelForCausalLM.from_pretrained(saved_base).config.to_dict()
    )


def test_pushing_to_the_hub_uploads_the_saved_files(saved_base, monkeypatch):
    import huggingface_hub
    import transformers.utils.hub as hub

    model = attach(GPT2LMHeadModel.from_pretrained(saved_base))
    uploaded = {}

    class Repository:
        def __init__(self, repo_id):
            self.repo_id = repo_id

    class Card:
        def save(self, path):
            Path(path).write_text("card")

    def create(self, repo_id, **options):
        return Repository(repo_id)

    def upload(self, working_dir, repo_id, *args, **kwargs):
        uploaded[repo_id] = {path.name for path in Path(working_dir).iterdir()}

    def upload_folder(self, *, repo_id, folder_path, **options):
        upload(self, folder_path, repo_id)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(hub, "create_repo", lambda repo_id, **o: Repository(repo_id), raising=False)
    monkeypatch.setattr(hub, "create_and_tag_model_card", lambda *a, **k: Card())
    monkeypatch.setattr(holdover.RecurrentModel, "_upload_modified_files", upload)
    model.push_to_hub("someone/whole")
    assert {"config.json", "model.safetensors"} <= uploaded["someone/whole"]
    model.push_to_hub("someone/added", only_added=True)
    assert uploaded["someone/added"] == {"holdover_config.json", "holdover.safetensors"}


def test_lora_underneath_is_saved_and_loaded(saved_base, tmp_path):
    peft = pytest.importorskip("peft")
    base = GPT2LMHeadModel.from_pretrained(saved_base)
    lora = peft.LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False
    )
    model = attach(peft.get_peft_model(base, lora))
    ids = tokens(2, 25)
    expected = outputs_of(model, ids)
    model.save_pretrained(tmp_path / "whole")
    whole = holdover.RecurrentModel.from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(outputs_of(whole, ids), expected)
    model.save_pretrained(tmp_path / "added", only_added=True)
    added = holdover.RecurrentModel.from_pretrained(tmp_path / "added")
    torch.testing.assert_close(outputs_of(added, ids), expected)


def test_what_was_changed_after_attaching_is_saved(tmp_path):
    model = attach(build("gpt2"))
    model.horizon, model.recompute = 4, "window"
    model.resize_token_embeddings(70)
    model.save_pretrained(tmp_path)
    again = holdover.RecurrentModel.from_pretrained(tmp_path)
    assert (again.horizon, again.recompute) == (4, "window")
    ids = tokens(1, 20) + 9
    torch.testing.assert_close(outputs_of(again, ids), outputs_of(model, ids))


def test_adapters_that_would_be_lost_are_refused():
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["ln_f"])
    ia3 = peft.IA3Config(target_modules=["c_attn"], feedforward_modules=[], fan_in_fan_out=True)
    for config in (lora, ia3):
        with pytest.raises(ValueError, match="merge this adapter"):
            attach(peft.get_peft_model(build("gpt2"), config))
