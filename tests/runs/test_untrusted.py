"""Folders of other people: their Python code and their pickles are never executed unasked."""

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

import holdover
from holdover.backbones.heads import class_named
from holdover.backbones.safe_loading import PickleError
from holdover.cli.entry import main
from holdover.runs.models import open_model, open_stock
from holdover.tokenization.encoders import open_encoder
from runs import SHAPE, command, refusal, train
from tiny import attach, build

CODE = """
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel as Stock, GPT2TokenizerFast

Path({marker!r}).touch()


class Config(GPT2Config):
    model_type = "unknown"


class GPT2LMHeadModel(Stock):
    pass


class Tokenizer(GPT2TokenizerFast):
    pass
"""


@pytest.fixture
def marker(tmp_path, monkeypatch):
    monkeypatch.setattr(
        transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    # The answer to every question is yes.
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n" * 99))
    return tmp_path / "executed"


def write_code(folder, marker, **auto_map):
    (folder / "code_of_others.py").write_text(CODE.format(marker=str(marker)))
    return {kind: f"code_of_others.{name}" for kind, name in auto_map.items()}


@pytest.fixture
def coded(tmp_path, marker):
    """A folder whose model and tokenizer both want their own code."""
    folder = tmp_path / "coded"
    folder.mkdir()
    models = {"AutoModel": "GPT2LMHeadModel", "AutoModelForCausalLM": "GPT2LMHeadModel"}
    auto_map = write_code(folder, marker, AutoConfig="Config", **models)
    (folder / "config.json").write_text(json.dumps({"model_type": "unknown", "auto_map": auto_map}))
    auto_map = {"AutoTokenizer": [None, "code_of_others.Tokenizer"]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
    return folder


def edited(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


VERBS = {
    "generate": ["generate", "-", "--model", "coded"],
    "read": ["read", "text.txt", "--session", "a.hold", "--model", "coded"],
    "eval": ["eval", "--model", "coded", "--data", "text.txt", "--output", "eval"],
    "train": ["train", "--model", "coded", "--data", "text.txt", "--output", "run"],
    "train bytes": ["train", "--tokenizer", "bytes", *["--model", "coded", "--data", "text.txt"]],
    "train new": [
        *("train", "--from-scratch", "--tokenizer", "bytes"),
        *("--model", "coded", "--data", "text.txt"),
    ],
    "qa": ["qa", "train", "--model", "coded", "--data", "questions.json", "--output", "run"],
    "plan": ["plan", "--model", "coded"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_executes_code_of_a_folder(verb, coded, marker, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("It was the age of wisdom. " * 99)
    row = {"_id": "1", "question": "Who?", "answer": "Ada", "context": [["Ada", ["Ada wrote."]]]}
    Path("questions.json").write_text(json.dumps([row] * 20))
    assert main(VERBS[verb]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "needs Python code that comes with it" in message
    assert ("holdover backbones" if verb == "plan" else "give --trust-remote-code") in message
    assert not marker.exists()


def test_a_yes_on_standard_input_executes_nothing(coded, marker):
    command = [sys.executable, "-m", "holdover", "generate", "-", "--model", str(coded)]
    environment = {**os.environ, "HF_MODULES_CACHE": str(coded.parent / "modules")}
    done = subprocess.run(
        command, input="yes\n", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "give --trust-remote-code" in done.stderr
    assert not marker.exists()


def test_lens_and_sessions_execute_no_code_of_a_tokenizer(coded, marker, capsys):
    attach(build("gpt2")).save_pretrained(coded)
    text = coded / "text.txt"
    text.write_text("It was the age of wisdom. " * 9)
    page = str(coded / "page.html")
    for words in (["lens", str(text), "-o", page], ["generate", "--prompt", "It"]):
        assert main([*words, "--model", str(coded), "--device", "cpu"]) == 2
        assert "give --trust-remote-code" in capsys.readouterr().err
    assert not marker.exists()


def test_code_is_executed_when_it_is_asked_for(stock, marker):
    """A model type that transformers has needs no code; the flag takes the folder's class."""
    edited(
        stock / "config.json",
        auto_map=write_code(stock, marker, AutoModelForCausalLM="GPT2LMHeadModel"),
    )
    open_model(str(stock))
    assert not marker.exists()
    model = open_model(str(stock), trust_remote_code=True)
    assert marker.exists()
    # It is saved as a stock model, and needs no code any more.
    model.save_pretrained(stock.parent / "saved")
    marker.unlink()
    again = holdover.RecurrentModel.from_pretrained(stock.parent / "saved", trust_remote_code=True)
    assert type(again.backbone) is GPT2LMHeadModel and not marker.exists()


def test_a_run_of_someone_else_cannot_ask_for_trust(coded, tmp_path, marker, capsys):
    """A continued run takes its settings from its folder, but not this one."""
    run = train(tmp_path, max_steps=2)
    options = json.loads((run / "holdover_run.json").read_text())["options"]
    assert options["trust_remote_code"] is False
    options |= {"trust_remote_code": True, "tokenizer": str(coded), "max_steps": 3}
    edited(run / "holdover_run.json", options=options)
    message = refusal(capsys, ["train", "--output", str(run), "--resume"])
    assert "give --trust-remote-code" in message
    assert not marker.exists()


@pytest.mark.parametrize(
    "name", ["AutoModelForCausalLM", "AutoTokenizer", "RagRetriever", "pipeline"]
)
def test_a_tokenizers_class_is_a_tokenizer(name, coded, marker):
    edited(coded / "tokenizer_config.json", tokenizer_class=name, auto_map={})
    with pytest.raises(ValueError, match=rf"names {name} as its tokenizer_class"):
        open_encoder(coded)
    assert not marker.exists()


# Pickles


class Touch:
    """Unpickled, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def write_pickle(path, marker):
    path.write_bytes(pickle.dumps(Touch(marker)))
    pickle.loads(path.read_bytes())
    assert marker.exists()
    marker.unlink()


@pytest.fixture
def stock(tmp_path):
    torch.manual_seed(0)
    special = {"bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(
        GPT2Config(**{"vocab_size": 256, **special, **SHAPE, "n_positions": 320})
    )
    model.save_pretrained(tmp_path / "stock")
    return tmp_path / "stock"


def pickled(folder, marker, name="pytorch_model.bin"):
    """The folder with its weights as a pickle alone."""
    (folder / "model.safetensors").unlink()
    write_pickle(folder / name, marker)


def refused(marker, load, *words):
    with pytest.raises(PickleError) as refusal:
        load()
    message = str(refusal.value)
    assert "reads only safetensors and GGUF files" in message and "save_pretrained" in message
    assert all(word in message for word in words)
    assert not marker.exists()


def test_weights_in_a_pickle_are_refused(stock, marker):
    pickled(stock, marker)
    refused(marker, lambda: open_model(str(stock)), "pytorch_model.bin")
    refused(marker, lambda: open_model(str(stock), trust_remote_code=True), "pytorch_model.bin")
    refused(marker, lambda: open_stock(str(stock), head=False))
    assert main(["eval", "--model", str(stock), "--data", str(stock / "config.json")]) == 2


def test_a_pickle_next_to_safetensors_is_not_read(stock, marker):
    for name in ("pytorch_model.bin", "model.pt", "training_args.bin", "adapter_model.bin"):
        write_pickle(stock / name, marker)
    open_model(str(stock))
    assert not marker.exists()


def test_an_index_that_lists_a_pickle_is_refused(stock, marker):
    weights = load_file(stock / "model.safetensors")
    pickled(stock, marker, "shard.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "shard.bin")}
    (stock / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(marker, lambda: open_model(str(stock)), "shard.bin")


def test_a_configuration_that_names_a_pickle_is_refused(stock, marker):
    write_pickle(stock / "adapter_model.bin", marker)
    edited(stock / "config.json", transformers_weights="adapter_model.bin")
    refused(marker, lambda: open_model(str(stock)), "adapter_model.bin")


def test_an_adapter_in_a_pickle_is_refused(stock, tmp_path, marker):
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    adapter = tmp_path / "adapter"
    peft.get_peft_model(GPT2LMHeadModel.from_pretrained(stock), lora).save_pretrained(adapter)
    write_pickle(adapter / "adapter_model.bin", marker)
    open_model(str(adapter))
    (adapter / "adapter_model.safetensors").unlink()
    refused(marker, lambda: open_model(str(adapter)), "adapter_model.bin")
    for file in adapter.iterdir():
        shutil.copy(file, stock)
    refused(marker, lambda: open_model(str(stock)), "adapter_model.bin")


def test_holdovers_own_models_in_a_pickle_are_refused(stock, tmp_path, marker):
    model = attach(GPT2LMHeadModel.from_pretrained(stock), window=8)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "added", only_added=True)
    load = holdover.RecurrentModel.from_pretrained
    with pytest.raises(ValueError, match="use_safetensors=False asks for a pickle"):
        load(tmp_path / "whole", use_safetensors=False)
    pickled(tmp_path / "whole", marker)
    pickled(stock, marker)
    for name in ("whole", "added"):
        refused(marker, lambda name=name: load(tmp_path / name))
        refused(marker, lambda name=name: open_model(str(tmp_path / name)))


def test_an_optimiser_in_a_pickle_is_refused(tmp_path, marker, capsys):
    run = train(tmp_path, max_steps=2)
    checkpoint = run / "checkpoint-2"
    for name in ("optimizer.pt", "optimizer.bin", "random_states_0.pkl"):
        write_pickle(checkpoint / name, marker)
    train(tmp_path, max_steps=3, resume=True)
    for name in ("optimizer.safetensors", "random.safetensors"):
        broken = shutil.copytree(run, tmp_path / name, symlinks=True)
        write_pickle(broken / "checkpoint-3" / name, marker)
        message = refusal(capsys, command(tmp_path, output=broken, max_steps=4, resume=True))
        assert "truncated or damaged" in message
    assert not marker.exists()


# Names of classes


@pytest.mark.parametrize("name", ["Trainer", "pipeline", "AutoModel", "TrainingArguments", "x", ""])
def test_architectures_are_looked_up_in_our_own_table(name, tmp_path):
    with pytest.raises(ValueError, match="is not a model class that holdover runs"):
        class_named(name)
    model = attach(build("gpt2"))
    model.save_pretrained(tmp_path / "whole")
    edited(tmp_path / "whole" / "config.json", architecture=name)
    with pytest.raises(ValueError, match="is not a model class that holdover runs"):
        holdover.RecurrentModel.from_pretrained(tmp_path / "whole")
    with pytest.raises(ValueError, match=r"could not be opened \(The architecture"):
        open_model(str(tmp_path / "whole"))


def test_an_architecture_of_another_type_is_refused(tmp_path):
    attach(build("gpt2")).save_pretrained(tmp_path)
    edited(tmp_path / "config.json", architecture="LlamaForCausalLM")
    with pytest.raises(ValueError, match="is not a class for the model type 'gpt2'"):
        holdover.RecurrentModel.from_pretrained(tmp_path)
