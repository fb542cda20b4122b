"""Compare the numbers of two versions of the library, to the last bit.

    python benchmarks/compare_versions.py
    python benchmarks/compare_versions.py --old 1e078ae --only "train*" --output runs/compare

The old version is checked out into a temporary worktree. Both versions then run the same cases at
the same time, one process and one thread each; every case is a fork of that process. Cases use only the
command line and the names in `holdover.__all__`. The exit code is 1 if a case that is not in EXPECTED
differs or fails. Values that only the new version returns are no difference.

It takes about two and a half minutes on two cores. Several processes, compiled steps, CUDA graphs,
the lm-eval harness and the demo are not compared.
"""

import argparse
import contextlib
import fnmatch
import io
import json
import math
import os
import re
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Cases that differ on purpose, and why.
EXPECTED: dict[str, str] = {}
# Values that only the old version returns, on purpose: records of 0.1.0 name the settings of all kinds
# of state, later ones only those of the model's own kind.
LEFT_OUT = ("/model/recurrence/",)
# Names of numbers that differ each time.
VARYING = re.compile("second|memory|time|^date$|peak|provenance|options")
CHECKPOINT = "checkpoint-"
# Tokens that a session writes at a time: enough for a small difference to change one.
WRITTEN = 200

GPT2 = {"n_layer": 3, "n_embd": 32, "n_head": 4, "n_positions": 48, "initializer_range": 0.2}
XL = {"n_layer": 3, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 32}
XL |= {"initializer_range": 0.2}
RSA = {"rsa": True, "rem-counts": "0,1,1,0,1,1", "rem-dilations": "2,3"}
# Settings of `holdover train`, in addition to those that all trainings share.
TRAININGS: dict[str, dict[str, Any]] = {
    "pooled": {},
    "pooled-overlap-horizon": {"overlap": 3, "windows": 4, "recurrence.horizon": 2},
    "pooled-all-layers-slots": {
        "recurrence.insert-layer": "all",
        "recurrence.slots": 3,
        "recurrence.pooling": "attention",
        "recurrence.mix-layers": "last",
        "recurrence.start": "learned",
        "recurrence.map-hidden": "",
    },
    "pooled-last-gelu": {
        "recurrence.pooling": "last",
        "recurrence.map-activation": "gelu",
        "overlap": 2,
        "recurrence.pool-positions": "non_overlap",
    },
    "pooled-max-detached": {"recurrence.pooling": "max", "recurrence.detach-state": True},
    "pooled-fixed-key-reset": {"recurrence.pooling": "fixed-key", "reset-every": 2},
    "pooled-recompute": {"recurrence.recompute": "window"},
    "pooled-lower-per-window": {"recurrence.lower-layers": "per_window"},
    "pooled-frozen-accumulate": {"freeze-base": True, "accumulate": 2, "weight-decay": 0.1},
    "pooled-bf16": {"bf16": True},
    "pooled-rsa": {**RSA, "overlap": 2},
    "tokens": {"recurrence": "tokens", "recurrence.slots": 3},
    "tokens-overlap-recompute": {
        "recurrence": "tokens",
        "recurrence.slots": 2,
        "recurrence.map-hidden": "",
        "overlap": 3,
        "recurrence.recompute": "window",
        "recurrence.start": "learned",
    },
    "none": {"recurrence": "none", "overlap": 2},
    "none-rsa": {"recurrence": "none", **RSA, "rsa-layers": "1,3"},
    "llama": {
        "model": "llama",
        "shape": {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 32,
            "initializer_range": 0.2,
        },
    },
    "xlnet": {
        "model": "xlnet",
        "shape": {
            "d_model": 32,
            "n_layer": 3,
            "n_head": 4,
            "d_inner": 32,
            "initializer_range": 0.2,
        },
        "recurrence": "memory",
        "recurrence.memory-length": 5,
    },
    "memory": {"model": "holdover_xl", "shape": XL, "recurrence": "memory"},
    "memory-rsa-overlap": {
        "model": "holdover_xl",
        "shape": {**XL, "attention": "rsa", "same_length": True},
        "recurrence": "memory",
        "recurrence.memory-length": 6,
        "overlap": 2,
        "rows": 2,
    },
    "blocks": {
        "model": "holdover_xl",
        "shape": {**XL, "recurrent_layers": [2], "state_vectors": 5},
        "recurrence": "blocks",
    },
    "blocks-lstm-dual-recompute": {
        "model": "holdover_xl",
        "shape": {
            **XL,
            "recurrent_layers": [1, 3],
            "state_vectors": 4,
            "state_gate": "lstm",
            "state_path": "dual",
        },
        "recurrence": "blocks",
        "recurrence.recompute": "window",
    },
}
# Trained models that are evaluated, and that write.
EVALUATED = ("pooled-overlap-horizon", "tokens", "memory", "blocks", "none", "pooled-rsa")
READERS: dict[str, dict[str, Any]] = {
    "pooled": {},
    "tokens-overlap": {"recurrence": "tokens", "recurrence.slots": 2, "overlap": 2},
    "none": {"recurrence": "none"},
}
INFORMER = {"d_model": 16, "n_heads": 8, "d_ff": 16, "e_layers": 2, "d_layers": 1, "dropout": 0.1}
FORECASTERS: dict[str, dict[str, Any]] = {
    "informer": {"model": "informer", "shape": INFORMER, "max-steps": 8},
    "informer-rsa": {"model": "informer", "shape": {**INFORMER, "rsa": True}, "max-steps": 8},
    "dlinear": {"model": "dlinear", "epochs": 1, "order": "sequential"},
    "lstm": {"model": "lstm", "shape": {"hidden_size": 16}, "max-steps": 8},
    "seasonal": {"model": "seasonal"},
}
REPORTED = ("overlap", "architecture", "memory", "forecasting", "attention", "window_size")


# Cases: each returns plain values, and works in the folder that all cases of one version share.


def training(name: str) -> dict[str, Any]:
    settings = {
        "model": "gpt2",
        "shape": GPT2,
        "tokenizer": "bytes",
        "data": "text.txt",
        "new-document": "^#",
        "window": 12,
        "windows": 3,
        "rows": 3,
        "warm-up": 3,
        "lr": 3e-3,
        "added-learning-rate": 3e-3,
        "validate-every": 400,
        "max-steps": 8,
        "device": "cpu",
        "cache-dir": "cache",
        "output": f"train/{name}",
    }
    given = {**settings, **TRAININGS[name]}
    if given["model"] == "gpt2" and given.get("recurrence", "pooled") in ("pooled", "tokens"):
        given.setdefault("recurrence.map-hidden", "16,16")
    verb("train", "--from-scratch", *flags(given))
    return {"log": logged(Path("train") / name), "weights": weights(Path("train") / name)}


def evaluation(name: str) -> Any:
    settings = {
        "model": f"train/{name}",
        "data": "text.txt",
        "new-document": "^#",
        "split": "all",
        "overlap": "0,4",
        "draws": 200,
        "diagnose-windows": 40,
        "device": "cpu",
        "cache-dir": "cache",
        "output": f"evaluation/{name}",
    }
    verb("eval", *flags(settings), "--no-plots")
    record = read_json(f"evaluation/{name}/eval.json")
    return numbers_of({"rows": record["rows"], "model": record["model"]})


def comparison() -> Any:
    shown = verb("compare", *(f"evaluation/{name}" for name in EVALUATED))
    return re.findall(r"[-+]?\d+\.\d{4}", shown)


def resumed() -> Any:
    """Stopped after five steps, and continued."""
    TRAININGS["resumed"] = {"max-steps": 5, "overlap": 2}
    training("resumed")
    TRAININGS["resumed"] = {"max-steps": 10, "overlap": 2, "resume": True}
    return training("resumed")


def adapted() -> Any:
    """LoRA under a state, trained by a loop of our own, then saved as an adapter and loaded."""
    import torch
    from peft import LoraConfig, get_peft_model

    import holdover

    base = random_gpt2()
    base.save_pretrained("adapter/base")
    base = type(base).from_pretrained("adapter/base")
    lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    config = holdover.RecurrenceConfig(window=12, map_hidden=(16,), overlap=2)
    model = holdover.add_recurrence(get_peft_model(base, lora), config).train()
    losses = optimised(model)
    model.eval().save_pretrained("adapter/saved", only_added=True)
    loaded = holdover.RecurrentModel.from_pretrained("adapter/saved").eval()
    with torch.no_grad():
        return {"losses": losses, "logits": loaded(token_ids(2, 40)).logits[:, -1]}


def loop_of_our_own() -> Any:
    """Padding, document starts, recompute="auto", a state given and handed on."""
    import torch

    import holdover

    config = holdover.RecurrenceConfig(window=12, map_hidden=(16,), overlap=2, slots=2)
    model = holdover.add_recurrence(random_gpt2(), config).train()
    losses = optimised(model, recompute="auto")
    model.eval()
    ids, mask = token_ids(3, 50), torch.ones(3, 50, dtype=torch.long)
    mask[1, 30:] = 0
    starts = torch.zeros(3, 50, dtype=torch.bool)
    starts[2, 20] = True
    with torch.no_grad():
        padded = model(ids, attention_mask=mask)
        again = model(ids, state=padded.state)
        begun = model(ids, document_starts=starts)
        with model.disable_recurrence():
            stock = model(ids[:, :40]).logits
    return {
        "losses": losses,
        "padded": padded.logits[:, 20:30],
        "again": again.logits[:, -1],
        "begun": begun.logits[:, -1],
        "stock": stock[:, -1],
        "state": list(again.state.tensors.values()),
    }


def encoders() -> Any:
    """Vectors of a bare encoder and logits of its heads."""
    import torch
    import transformers

    import holdover

    found = {}
    for name, cls in (("bare", "BertModel"), ("classes", "BertForTokenClassification")):
        torch.manual_seed(0)
        shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
        shape |= {"intermediate_size": 32, "max_position_embeddings": 40, "vocab_size": 61}
        config = transformers.BertConfig(**shape, initializer_range=0.2)
        for carry in ("pooled", "tokens"):
            stock = getattr(transformers, cls)(config).eval()
            settings = holdover.RecurrenceConfig(window=12, carry=carry, map_hidden=(16,))
            model = holdover.add_recurrence(stock, settings).eval()
            with torch.no_grad():
                vectors = model.encode(token_ids(2, 50))
            found[f"{name}-{carry}"] = getattr(vectors, "last_hidden_state", vectors)
    return found


def session(name: str) -> Any:
    """Text read and written; then saved, loaded, and continued in Python and on the command line."""
    import holdover

    model = holdover.RecurrentModel.from_pretrained(f"train/{name}/best").eval()
    path = f"{name}.hold"
    begun = holdover.Session(model, "bytes", seed=5, temperature=0.9, top_k=60)
    found: dict[str, Any] = {"read": begun.read("# of the old\n" + "abc dad face bead " * 4)}
    found["first"] = begun.write(WRITTEN)
    begun.save(path)
    loaded = holdover.Session.load(path, model, "bytes")
    found["place"] = [loaded.position, loaded.windows, loaded.state_bytes]
    found["second"] = loaded.write(WRITTEN)
    found["third"] = loaded.write(WRITTEN, temperature=0.0)
    words = ["--session", path, "--model", f"train/{name}/best", "--max-new-tokens", WRITTEN]
    found["command line"] = verb("generate", *words, "--no-save")
    verb("read", "text.txt", "--session", path, "--model", f"train/{name}/best")
    loaded = holdover.Session.load(path, model, "bytes")
    return {**found, "fourth": loaded.write(WRITTEN), "end": loaded.position}


def generation(name: str) -> Any:
    """Greedy, sampled, beams, and one token at a time; padded prompts of two lengths."""
    import torch

    import holdover

    model = holdover.RecurrentModel.from_pretrained(f"train/{name}/best").eval()
    ids, mask = token_ids(2, 20, vocabulary=250), torch.ones(2, 20, dtype=torch.long)
    mask[1, :5] = 0
    padded: dict[str, Any] = {"attention_mask": mask, "pad_token_id": 0, "max_new_tokens": 30}
    found = {"greedy": model.generate(ids, **padded, do_sample=False)}
    torch.manual_seed(0)
    sampling = {"do_sample": True, "top_p": 0.9, "temperature": 0.8, "num_return_sequences": 2}
    found["sampled"] = model.generate(ids, **padded, **sampling)
    beams = {"num_beams": 3, "do_sample": False, "repetition_penalty": 1.3}
    found["beams"] = model.generate(ids, **padded, **beams)
    torch.manual_seed(0)
    stream = model.stream(ids[:1], max_new_tokens=30, do_sample=True, pad_token_id=0)
    found["stream"] = [torch.as_tensor(token).tolist() for token in stream]
    with torch.no_grad():
        window = model.open_window(model(ids).state)
        found["fed"] = [window.feed(ids[:, at : at + 2]) for at in (0, 2, 4)]
        found["closed"] = list(window.close().tensors.values())
    return found


def lens() -> Any:
    import holdover

    model = holdover.RecurrentModel.from_pretrained("train/pooled/best").eval()
    seen = holdover.lens(model, Path("text.txt").read_text()[:1200], "bytes")
    return {"own": seen.own, "without": seen.without, "other": seen.other}


def bundled() -> Any:
    """The model of the package writes."""
    words = ["--prompt", "It was the best of times, it was", "--max-new-tokens", 40, "--seed", 3]
    return verb("generate", "--model", "books-recurrent", "--device", "cpu", *words)


def reading(name: str) -> Any:
    """A reader is trained, scored, and asked."""
    settings = {
        "model": "encoder",
        "data": "questions.json",
        "window": 14,
        "rows": 3,
        "lr": 1e-3,
        "added-learning-rate": 1e-3,
        "warm-up": 0,
        "max-steps": 10,
        "recurrence.map-hidden": "16",
        "device": "cpu",
        "output": f"qa/{name}",
        **READERS[name],
    }
    if name == "none":
        del settings["recurrence.map-hidden"]
    verb("qa", "train", *flags(settings))
    scored = {"model": f"qa/{name}", "draws": 200, "device": "cpu", "output": f"qa/{name}-eval"}
    verb("qa", "eval", *flags(scored))
    asked = ["--question", "what is it", "--context", "context.txt", "--device", "cpu", "--json"]
    return {
        "log": logged(Path("qa") / name),
        "weights": weights(Path("qa") / name),
        "evaluation": numbers_of(read_json(f"qa/{name}-eval/qa_eval.json")["rows"]),
        "answer": json.loads(verb("qa", "ask", "--model", f"qa/{name}", *asked)),
    }


def forecasting(name: str) -> Any:
    """A forecaster is trained, scored, and asked for the future."""
    settings = {
        "data": "power.csv",
        "past": 24,
        "ahead": 6,
        "lr": 1e-3,
        "device": "cpu",
        "output": f"forecast/{name}",
        **FORECASTERS[name],
    }
    verb("forecast", "train", *flags(settings))
    scored = {"model": f"forecast/{name}", "draws": 200, "device": "cpu"}
    scored |= {"output": f"forecast/{name}-eval"}
    verb("forecast", "eval", *flags(scored), "--no-plots")
    asked = ["--model", f"forecast/{name}", "--output", f"forecast/{name}.csv", "--device", "cpu"]
    verb("forecast", "predict", *asked, "--no-plot")
    return {
        "log": logged(Path("forecast") / name),
        "evaluation": numbers_of(read_json(f"forecast/{name}-eval/forecast_eval.json")["rows"]),
        "forecast": Path(f"forecast/{name}.csv").read_text(),
    }


def report(name: str) -> Any:
    """The numbers of a report's tables and brackets, made from records of the old version."""
    words = ["--results", "records", "--experiments", name, "--output", f"report-{name}.html"]
    verb("report", *words)
    text = Path(f"report-{name}.md").read_text(encoding="utf-8").replace("\u2212", "-")
    lines = [re.findall(r"[-+]?\d[\d,]*\.\d+%?", line) for line in text.splitlines()]
    return [line for line in lines if line]


def plan() -> Any:
    """What a training is expected to take."""
    words = [
        "--model",
        "gpt2",
        "--window",
        300,
        "--windows",
        20,
        "--rows",
        8,
        "--json",
        "plan.json",
    ]
    verb("plan", *words)
    return numbers_of(read_json("plan.json"), leave_out=re.compile("provenance"))


# In this order: later cases use models that earlier ones trained.
CASES: dict[str, Callable[[], Any]] = {
    **{f"train/{name}": lambda name=name: training(name) for name in list(TRAININGS)},
    "train/resumed": resumed,
    "train/lora": adapted,
    "loop of our own": loop_of_our_own,
    "encoders": encoders,
    **{f"eval/{name}": lambda name=name: evaluation(name) for name in EVALUATED},
    "compare": comparison,
    **{f"session/{name}": lambda name=name: session(name) for name in EVALUATED},
    **{f"generate/{name}": lambda name=name: generation(name) for name in EVALUATED},
    "lens": lens,
    "bundled": bundled,
    **{f"qa/{name}": lambda name=name: reading(name) for name in READERS},
    **{f"forecast/{name}": lambda name=name: forecasting(name) for name in FORECASTERS},
    **{f"report/{name}": lambda name=name: report(name) for name in REPORTED},
    "plan": plan,
}


def write_inputs() -> None:
    """The texts, questions, series and the encoder that the cases read."""
    draw = Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(40)]
    texts = [
        f"# {number}\n" + " ".join(draw.choices(words, k=draw.randint(20, 60))) + "\n"
        for number in range(14)
    ]
    Path("text.txt").write_text("".join(texts))
    fillers = [f"w{number}" for number in range(20)]
    records = []
    for number in range(40):
        taste = draw.choice(["sweet", "hard"])
        first = ["it", "is", *[taste] * 3, *draw.choices(fillers, k=3)]
        second = [*draw.choices(fillers, k=6), *draw.sample(["apple", "stone"], 2)]
        record = {"_id": f"id{number}", "question": "What is it", "type": "bridge"}
        record["answer"] = "apple" if taste == "sweet" else "stone"
        record["context"] = [["facts", [" ".join(first), " ".join(["", *second])]]]
        records.append(record)
    Path("questions.json").write_text(json.dumps(records))
    Path("context.txt").write_text("it is sweet sweet w1 w2 w3 w4 w5 w6 apple w7 stone w8\n")
    lines = ["date,load,temperature"]
    for hour in range(260):
        day, time_of_day = divmod(hour, 24)
        wave = math.sin(2 * math.pi * hour / 24)
        load = 100 + 20 * wave + draw.gauss(0, 1)
        lines.append(
            f"2020-01-{day + 1:02d} {time_of_day:02d}:00:00,{load:.3f},{5 + wave * draw.random():.4f}"
        )
    Path("power.csv").write_text("\n".join(lines) + "\n")
    write_encoder(fillers)


def write_encoder(fillers: list[str]) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]"]
    words = ["what", "is", "it", "sweet", "hard", "apple", "stone", "facts", "yes", "no", "?"]
    vocabulary = {word: number for number, word in enumerate([*special, *words, *fillers])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    ).save_pretrained("encoder")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"intermediate_size": 32, "max_position_embeddings": 32, "vocab_size": len(vocabulary)}
    torch.manual_seed(0)
    config = transformers.BertConfig(**shape, initializer_range=0.3)
    transformers.BertModel(config).save_pretrained("encoder")


def random_gpt2() -> Any:
    import torch
    import transformers

    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=61, **special, **GPT2))


def optimised(model: Any, steps: int = 6, **arguments: Any) -> list[Any]:
    """The losses of a plain loop."""
    import torch

    torch.manual_seed(1)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for step in range(steps):
        ids = token_ids(3, 60, seed=step)
        loss = model(ids, labels=ids, **arguments).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def token_ids(rows: int, columns: int, seed: int = 0, vocabulary: int = 61) -> Any:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocabulary, (rows, columns), generator=generator)


def verb(*words: Any) -> str:
    """Run `python -m holdover WORDS` in this process; returns what it wrote to standard output."""
    output, before = io.StringIO(), sys.argv
    sys.argv = ["holdover", *map(str, words)]
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_module("holdover", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{' '.join(sys.argv)} ended with {end.code}") from end
    finally:
        sys.argv = before
    return output.getvalue()


def flags(settings: dict[str, Any]) -> list[str]:
    """Settings as they are typed on the command line."""
    typed = []
    for name, value in settings.items():
        if isinstance(value, dict):
            value = ",".join(f"{key}={_typed(inner)}" for key, inner in value.items())
        typed += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return typed


def _typed(value: Any) -> str:
    return json.dumps(value).replace(" ", "") if isinstance(value, list | bool) else str(value)


def logged(run: Path) -> list[dict[str, Any]]:
    """A run's log without what differs each time; forecasters without weights have none."""
    if not (run / "log.jsonl").exists():
        return []
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [numbers_of(line) for line in lines]


def weights(run: Path) -> dict[str, float]:
    """The sum of each weight at the end of a run, which shows what no loss has seen yet."""
    from safetensors.torch import load_file

    last = max(run.glob(f"{CHECKPOINT}*"), key=lambda path: int(path.name.partition("-")[2]))
    return {
        f"{path.name}: {name}": tensor.double().sum().item()
        for path in sorted(last.glob("*.safetensors"))
        if not path.name.startswith(("optimizer", "random"))
        for name, tensor in load_file(path).items()
    }


def numbers_of(value: Any, leave_out: re.Pattern[str] = VARYING) -> Any:
    """The numbers of a record: no words, and nothing whose name matches `leave_out`."""
    if isinstance(value, dict):
        kept = {
            key: numbers_of(inner, leave_out)
            for key, inner in value.items()
            if not leave_out.search(key)
        }
        return {key: inner for key, inner in kept.items() if inner not in (None, {}, [])}
    if isinstance(value, list):
        items = [numbers_of(inner, leave_out) for inner in value]
        return [inner for inner in items if inner is not None]
    return None if isinstance(value, str) else value


def read_json(path: str) -> Any:
    return json.loads(Path(path).read_text())


def as_plain(value: Any) -> Any:
    """Tensors and arrays as lists: JSON keeps every bit of a float."""
    if hasattr(value, "tolist"):
        value = (value.float() if "bfloat16" in str(value.dtype) else value).tolist()
    if isinstance(value, dict):
        return {str(key): as_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(inner) for inner in value]
    return value


# The process that runs the cases of one version.


def work(source: Path, results: Path, names: list[str]) -> None:
    import torch

    import holdover

    torch.set_num_threads(1)
    found = Path(holdover.__file__).resolve()
    if not found.is_relative_to(source.resolve()):
        raise SystemExit(f"holdover was imported from {found}, not from {source}.")
    # Imported once: cases are forks of this process.
    verb("backbones")
    write_inputs()
    for number, name in enumerate(names):
        begun, child = time.monotonic(), os.fork()
        if child == 0:
            run_and_exit(name, results / f"{number}.json", results / f"{number}.log")
        os.waitpid(child, 0)
        print(f"{time.monotonic() - begun:6.1f} s  {name}", flush=True)


def run_and_exit(name: str, path: Path, log: Path) -> None:
    """What a case returns or why it failed, in a file; then this process is gone."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    try:
        result = {"value": as_plain(CASES[name]())}
    except BaseException as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    finally:
        path.write_text(json.dumps(result))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


# The process that starts both and compares.


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--old", default="1e078ae", metavar="REV", help="the version to compare with"
    )
    parser.add_argument(
        "--new",
        type=Path,
        default=ROOT / "src",
        metavar="DIR",
        help="sources (default: this checkout's)",
    )
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases, as in 'train*'")
    parser.add_argument("--output", type=Path, metavar="DIR", help="keep results and logs here")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = [name for name in CASES if fnmatch.fnmatch(name, given.only)]
    if not names:
        parser.error(f"no case is called {given.only}; there are {', '.join(CASES)}.")
    if given.work:
        work(given.new, given.work, names)
        return 0
    with tempfile.TemporaryDirectory() as scratch, checked_out(given.old) as old:
        output = (given.output or Path(scratch) / "results").resolve()
        sources = {"old": old / "src", "new": given.new.resolve()}
        records = old / "results" / "experiments"
        processes = []
        for version, source in sources.items():
            folder = Path(scratch) / version
            (folder / "work").mkdir(parents=True)
            (folder / "work" / "records").symlink_to(records)
            (output / version).mkdir(parents=True, exist_ok=True)
            processes.append(start(source, folder, output / version, given.only))
        for process in processes:
            if process.wait():
                raise SystemExit("one of the versions could not be run: see above.")
        rows = [compared(name, number, output) for number, name in enumerate(names)]
        (output / "compared.json").write_text(json.dumps(rows, indent=1) + "\n")
    return shown(rows, given.output)


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """A temporary worktree."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, git = Path(scratch) / "old", ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder), revision], check=True)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def start(source: Path, folder: Path, results: Path, only: str) -> "subprocess.Popen[bytes]":
    words = ["--work", str(results), "--new", str(source), "--only", only]
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "200",
        "HOLDOVER_CACHE": str(folder / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *words],
        cwd=folder / "work",
        env=environment,
        # Both run the same cases at the same time: one of the two tells how far they are.
        stdout=None if results.name == "new" else subprocess.DEVNULL,
    )


def compared(name: str, number: int, output: Path) -> dict[str, Any]:
    results = [
        json.loads((output / side / f"{number}.json").read_text()) for side in ("old", "new")
    ]
    errors = [result["error"] for result in results if "error" in result]
    old, new = (dict(leaves(result.get("value"))) for result in results)
    # As text, so that equal means every bit, also of what is no number.
    differing = [
        [place, one, new[place]]
        for place, one in old.items()
        if place in new and repr(one) != repr(new[place])
    ]
    missing = [place for place in old if place not in new and not place.startswith(LEFT_OUT)]
    distances = [
        abs(one - other)
        for _, one, other in differing
        if isinstance(one, int | float) and isinstance(other, int | float)
    ]
    return {
        "case": name,
        "number": number,
        "values": len(old),
        "equal": not (missing or differing or errors),
        "missing": missing,
        "added": [place for place in new if place not in old],
        "largest_difference": max(distances, default=0.0),
        "differing": len(differing),
        "first": differing[:5],
        "errors": errors,
        "expected": EXPECTED.get(name),
    }


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value, and where it stands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{place}/{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{place}/{number}")
    else:
        yield place, value


def shown(rows: list[dict[str, Any]], output: Path | None) -> int:
    """The table; returns the exit code."""
    print(f"\n{'case':36} {'values':>8}  equal  {'largest difference':>18}")
    for row in rows:
        word = "yes" if row["equal"] else "no"
        print(f"{row['case']:36} {row['values']:8,}  {word:5}  {row['largest_difference']:18.3g}")
        if row["equal"]:
            continue
        for error in row["errors"]:
            print(f"    failed: {error}")
        if row["missing"]:
            print(f"    {len(row['missing'])} values are missing, such as {row['missing'][0]}")
        for place, one, other in row["first"]:
            print(f"    {place}: {one!r} was, {other!r} is")
        if row["expected"]:
            print(f"    expected: {row['expected']}")
    wrong = [row["case"] for row in rows if not row["equal"] and not row["expected"]]
    equal = sum(row["equal"] for row in rows)
    print(f"\n{equal} of {len(rows)} cases are equal to the last bit.")
    if output:
        print(f"Results, logs and compared.json: {output}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
