"""Write the files of v0_1_0 and, next to them, what 0.1.0 reads from them (expected.json).

Run once, with the code of commit 1e078ae, into a folder that does not exist yet:

    git worktree add --detach OLD 1e078ae
    export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
    PYTHONPATH=OLD/src:tests/support python tests/legacy/write_files.py

Never run it with later code: the files would no longer be those of 0.1.0.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import holdover
from legacy_reading import (
    FORECASTERS,
    GPT2,
    READERS,
    RUNS,
    STOPPED,
    VOCABULARY,
    XL,
    flags,
    forecast_command,
    qa_command,
    token_ids,
    train_command,
    verb,
)

HERE = Path(__file__).parent
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DROPOUT_OFF = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
RSA = {"rsa": True, "rem_counts": (0, 0, 0, 0, 1, 1), "rem_dilations": (2, 3)}
XLNET = {"d_model": 8, "n_layer": 2, "n_head": 2, "d_inner": 16, "initializer_range": 0.2}
BLOCKS = {**XL, "recurrent_layers": [2], "state_vectors": 3, "state_gate": "lstm"}
# The model, its configuration, and the recurrence, for each kind of state.
STATES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "pooled": ("gpt2", GPT2, {"map_hidden": (8,)}),
    "pooled-slots-overlap": (
        "gpt2",
        GPT2,
        {"slots": 3, "pooling": "attention", "insert_layer": "all", "map_hidden": (), "overlap": 3},
    ),
    "pooled-start-present": ("gpt2", GPT2, {"map_hidden": (8,), "start": "learned"}),
    "pooled-rsa": ("gpt2", GPT2, {"map_hidden": (8,), **RSA}),
    "tokens": ("gpt2", GPT2, {"carry": "tokens", "slots": 2, "map_hidden": ()}),
    "tokens-overlap-present": (
        "gpt2",
        GPT2,
        {"carry": "tokens", "slots": 2, "map_hidden": (), "overlap": 2},
    ),
    "memory": ("holdover_xl", XL, {"carry": "memory", "memory_length": 5}),
    "memory-overlap-present": ("holdover_xl", XL, {"carry": "memory", "overlap": 2}),
    "memory-xlnet": ("xlnet", XLNET, {"carry": "memory", "memory_length": 5}),
    "blocks": ("holdover_xl", BLOCKS, {"carry": "blocks"}),
    "none-overlap": ("gpt2", GPT2, {"carry": "none", "overlap": 3}),
    "none-rsa-overlap": ("gpt2", GPT2, {"carry": "none", "overlap": 3, **RSA}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "v0_1_0")
    output: Path = parser.parse_args().output.resolve()
    if output.exists():
        raise SystemExit(f"{output} exists: these files are written once.")
    torch.set_num_threads(1)
    output.mkdir(parents=True)
    os.chdir(output)
    os.environ["COLUMNS"] = "200"
    write_text(Path("text.txt"))
    write_states()
    for name in RUNS:
        verb(*train_command(name, STOPPED))
        tidy(Path("train") / name)
    write_sessions()
    write_evaluations()
    write_adapters()
    write_questions()
    write_forecasters()
    write_experiment()
    for folder in ("unused", "cache-of-experiment"):
        shutil.rmtree(folder)
    expected = {name: reader_in_copy(output, name) for name in READERS}
    (output / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def reader_in_copy(folder: Path, name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "copy"
        shutil.copytree(folder, copy, symlinks=True)
        os.chdir(copy)
        try:
            return READERS[name]()
        finally:
            os.chdir(folder)


def tidy(run: Path) -> None:
    """Leave the best and the newest checkpoint."""
    (run / ".lock").unlink(missing_ok=True)


def write_text(path: Path) -> None:
    """Ten documents of different lengths; a line with # begins each."""
    draw = Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(30)]
    texts = [
        f"# {number}\n" + " ".join(draw.choices(words, k=draw.randint(15, 30))) + "\n"
        for number in range(10)
    ]
    path.write_text("".join(texts))


def stock_model(model_type: str, shape: dict[str, Any], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    values = {"vocab_size": VOCABULARY, **SPECIAL, **shape}
    config = transformers.AutoConfig.for_model(model_type, **values)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def attach(model: Any, settings: dict[str, Any]) -> holdover.RecurrentModel:
    """Attached, with added weights that are large enough for the state to matter."""
    torch.manual_seed(1)
    config = holdover.RecurrenceConfig(window=9, **settings)
    attached = holdover.add_recurrence(model, config).eval()
    for parameter in attached.recurrence.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attached


def write_states() -> None:
    Path("states").mkdir()
    for name, (model_type, shape, settings) in STATES.items():
        attach(stock_model(model_type, shape), settings).save_pretrained(f"models/{name}")
        model = holdover.RecurrentModel.from_pretrained(f"models/{name}").eval()
        with torch.no_grad():
            state = model(token_ids(2, 22, seed=2)).state
        if name.endswith("present"):
            state = state.reset(torch.tensor([False, True]))
        state.save(f"states/{name}.state")


def write_sessions() -> None:
    Path("sessions").mkdir()
    for name in ("pooled", "tokens", "memory", "blocks"):
        model = holdover.RecurrentModel.from_pretrained(f"train/{name}/best").eval()
        session = holdover.Session(model, "bytes", seed=3, temperature=0.9, top_k=40)
        session.read("# new\nabcd efgh abba cafe bade face")
        session.write(5)
        session.save(f"sessions/{name}-written.hold")
    model = holdover.RecurrentModel.from_pretrained("train/pooled/best").eval()
    session = holdover.Session(model, "bytes", seed=4, top_p=0.9)
    session.read("ab")
    for _ in session.read_on(Path("text.txt")):
        break
    session.save("sessions/pooled-reading.hold")
    Path("sessions-of-bundled").mkdir()
    settings = [
        "--model",
        "books-recurrent",
        "--device",
        "cpu",
        "--seed",
        1,
        "--max-new-tokens",
        12,
    ]
    prompt = ["--prompt", "It was a cold morning, and the traveller had not come back."]
    verb("generate", *settings, *prompt, "--session", "sessions-of-bundled/books.hold")


def write_evaluations() -> None:
    for name in ("pooled", "tokens"):
        settings = {
            "model": f"train/{name}",
            "data": "text.txt",
            "new-document": "^#",
            "split": "all",
            "overlap": "0,2",
            "draws": 100,
            "diagnose-windows": 20,
            "device": "cpu",
            "cache-dir": "cache",
            "output": f"evaluation/{name}",
        }
        verb("eval", *flags(settings), "--no-plots")


def write_adapters() -> None:
    from peft import LoraConfig, get_peft_model

    stock_model("gpt2", {**GPT2, **DROPOUT_OFF}).save_pretrained("adapter/base")
    settings = {"map_hidden": (8,), "slots": 2}

    def base() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained("adapter/base")

    attach(base(), settings).save_pretrained("adapter/added", only_added=True)
    torch.manual_seed(7)
    lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    adapted = attach(get_peft_model(base(), lora), settings)
    adapted.save_pretrained("adapter/added-lora", only_added=True)
    adapted.save_pretrained("adapter/whole-lora")


def write_questions() -> None:
    fillers = [f"w{number}" for number in range(20)]
    special = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]"]
    words = ["what", "is", "it", "sweet", "hard", "apple", "stone", "facts", "yes", "no", "?"]
    vocabulary = {word: number for number, word in enumerate([*special, *words, *fillers])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained("qa/encoder")
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    transformers.BertModel(config).save_pretrained("qa/encoder")
    draw = Random(0)
    records = []
    for number in range(30):
        taste = draw.choice(["sweet", "hard"])
        first = ["it", "is", *[taste] * 3, *draw.choices(fillers, k=3)]
        second = [*draw.choices(fillers, k=6), *draw.sample(["apple", "stone"], 2)]
        answer = "apple" if taste == "sweet" else "stone"
        context = [["facts", [" ".join(first), " ".join(["", *second])]]]
        kind = draw.choice(["bridge", "comparison"])
        records.append(
            {"_id": f"id{number}", "question": "What is it", "answer": answer, "type": kind}
            | {"context": context}
        )
    Path("qa/questions.json").write_text(json.dumps(records))
    Path("qa/context.txt").write_text("it is sweet sweet w1 w2 w3 w4 w5 w6 apple w7 stone w8\n")
    verb(*qa_command(STOPPED))
    tidy(Path("qa/run"))
    settings = {"model": "qa/run", "draws": 100, "device": "cpu", "output": "qa/evaluation"}
    verb("qa", "eval", *flags(settings))


def write_forecasters() -> None:
    Path("forecast").mkdir()
    rows = 200
    noise = np.random.default_rng(0).normal(size=(rows, 2))
    day = 2 * np.pi * np.arange(rows) / 24
    values = np.stack([100 + 20 * np.sin(day), 5 + np.cos(day)], 1) + noise * [1.0, 0.05]
    times = np.datetime64("2020-01-01T00", "h") + np.arange(rows)
    lines = [
        f"{str(time).replace('T', ' ')}:00:00,{load:.3f},{temperature:.4f}"
        for time, (load, temperature) in zip(times, values, strict=True)
    ]
    Path("forecast/power.csv").write_text("\n".join(["date,load,temperature", *lines]) + "\n")
    for name in FORECASTERS:
        verb(*forecast_command(name))
        tidy(Path("forecast") / name)
    settings = {"against": "forecast/dlinear", "draws": 100, "device": "cpu"}
    settings |= {"output": "forecast/evaluation"}
    verb("forecast", "eval", "--model", "forecast/informer", *flags(settings), "--no-plots")


def write_experiment() -> None:
    Path("experiment").mkdir()
    shutil.copy(HERE / "small_experiment.py", "experiment")
    run = ["run", "experiment/small_experiment.py", "--scale", "small", "--device", "cpu"]
    run += ["--cache-dir", "cache-of-experiment"]
    verb(*run, "--results", "experiment/records", "--output", "unused")
    assert list(Path("unused").rglob("measured"))


if __name__ == "__main__":
    main()
