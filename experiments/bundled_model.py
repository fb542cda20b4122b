"""The models in the package: a small GPT-2 pretrained on PG-19 books, and twins with and without memory.

    HOLDOVER_DATA=... python experiments/bundled_model.py --output runs/bundled   (an H200: 20 minutes)
    python experiments/bundled_model.py --output runs/toy --data DIR --scale toy  (two cores: a minute)

Stages; each is skipped if its result exists already, so an interrupted run continues:

* tokenizer: byte-level BPE of the training books.
* pretrain:  windows of all 512 positions, read alone.
* arms:      from that checkpoint, on the same tokens in the same order, with windows of 300: one run for
             each kind of state and one without, in parallel on one device.
* export:    every arm in half precision, as in the package.
* evaluate:  the exported models on the test books.

`bundled_shipping.py` writes the record and puts the twins into the package.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from holdover import RecurrentModel
from holdover.text.sources import open_source
from holdover.tokenization.encoders import encoder_of

POSITIONS = 512
WINDOW = 300
VOCABULARY = 4096
END_OF_TEXT = "<|endoftext|>"
SHAPE = {
    "n_layer": 6,
    "n_embd": 256,
    "n_head": 8,
    "n_positions": POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 0,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}
COMMON = {
    "schedule": "cosine",
    "betas": [0.9, 0.95],
    "weight_decay": 0.1,
    "epochs": 1000,
    "patience": None,
    "save_every": 300,
    "keep": 1,
    "validation_tokens": 20_000,
    "log_every": 100,
}
PRETRAIN = {
    "model": "gpt2",
    "from_scratch": True,
    "shape": SHAPE,
    "recurrence": {"carry": "none", "window": POSITIONS},
    "windows": 1,
    "rows": 128,
    "learning_rate": 2e-3,
    "warm_up": 300,
    "max_steps": 6000,
    "validate_every": 60_000_000,
}
ARM = {
    "windows": 20,
    "rows": 32,
    "learning_rate": 1e-3,
    "added_learning_rate": 1e-3,
    "warm_up": 100,
    "max_steps": 2000,
    "validate_every": 65_000_000,
}
LAST = {"carry": "pooled", "pooling": "last", "insert_layer": "all", "map_hidden": []}
ARMS: dict[str, dict[str, Any]] = {
    "plain": {"carry": "none"},
    # The method as published.
    "pooled": {"carry": "pooled"},
    # The last positions of a window instead of one mean, read by all layers.
    "pooled-last32": {**LAST, "slots": 32},
    "pooled-last64": {**LAST, "slots": 64},
    "tokens16": {"carry": "tokens", "slots": 16, "map_hidden": []},
}
PLAIN_OVERLAPS = "0,10,30,50"
# Enough to see every stage work on two cores.
TOY = {"max_steps": 6, "rows": 2, "windows": 2, "validation_tokens": 1500, "warm_up": 2}
TOY_SHAPE = {**SHAPE, "n_layer": 2, "n_embd": 32, "n_head": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", default="pg19", help="name or folder of the books")
    parser.add_argument("--scale", choices=("real", "toy"), default="real")
    parser.add_argument("--arms", default=",".join(ARMS), help="some of " + ", ".join(ARMS))
    parser.add_argument("--stages", default="tokenizer,pretrain,arms,export,evaluate")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a training option of the arms",
    )
    parser.add_argument(
        "--suffix", default="", help="added to the names of the arms' folders, for use with --set"
    )
    options = parser.parse_args()
    real = options.scale == "real"
    out: Path = options.output
    out.mkdir(parents=True, exist_ok=True)
    stages = options.stages.split(",")
    data = {"data": options.data, "bf16": real, "compile": real}
    if "tokenizer" in stages and not (out / "tokenizer").exists():
        train_tokenizer(options.data, out / "tokenizer", VOCABULARY if real else 512)
    if "pretrain" in stages:
        settings = {**COMMON, **PRETRAIN, **data, "tokenizer": str(out / "tokenizer")}
        if not real:
            settings |= {**TOY, "windows": 1, "shape": TOY_SHAPE}
        wait([start_training(out / "pretrained", settings)])
    names = {name: name + options.suffix for name in options.arms.split(",")}
    if "arms" in stages:
        runs = []
        for name, folder in names.items():
            settings = {**COMMON, **ARM, **data, "model": str(out / "pretrained")}
            settings["recurrence"] = {"window": WINDOW, **ARMS[name]}
            runs.append(start_training(out / folder, settings | ({} if real else TOY), options.set))
        wait(runs)
    if "export" in stages:
        for folder in names.values():
            export(out / folder, out / "shipped" / folder)
    if "evaluate" in stages:
        limit = [] if real else ["document_tokens=2000"]
        wait([evaluate(out / "shipped" / name, options.data, limit) for name in names.values()])


def start_training(
    folder: Path, settings: dict[str, Any], words: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a training, or continue it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f"{folder.name}.yaml")
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    if (folder / "log.jsonl").exists():
        return start("train", "--resume", "--output", str(folder))
    return start("train", "--config", str(path), "--output", str(folder), *words)


def start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "holdover", *words])


def wait(processes: list[subprocess.Popen[bytes]]) -> None:
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit("A part of the experiment failed: see above; repeat the same command to continue.")


def last_checkpoint(run: Path) -> Path:
    """The last checkpoint of a run, not the best."""
    return max(run.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))


def train_tokenizer(data: str, folder: Path, size: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bytelevel = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = bytelevel, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END_OF_TEXT], initial_alphabet=bytelevel.alphabet()
    )
    books = open_source(data, "train").documents()
    texts = (b"".join(book.read()).decode() for book in books)
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        # A text may be longer than the positions of a model, thanks to the state.
        model_max_length=int(1e30),
    )
    fast.save_pretrained(str(folder))


def export(run: Path, folder: Path) -> None:
    """The last checkpoint of a run in half precision, with its tokenizer and its description.

    The last, not the best: its learning rate has decayed to zero, and every twin has then seen the same
    tokens.
    """
    last = last_checkpoint(run)
    model = RecurrentModel.from_pretrained(last)
    model.half().save_pretrained(folder)
    encoder_of(str(last)).save(folder)
    shutil.copy(last / "holdover_run.json", folder)


def evaluate(folder: Path, data: str, words: list[str]) -> subprocess.Popen[bytes]:
    record = folder.with_name(f"{folder.name}-eval")
    overlaps = ["--overlap", PLAIN_OVERLAPS] if folder.name.startswith("plain") else []
    where = ["--model", str(folder), "--data", data, "--output", str(record)]
    return start("eval", *where, "--rows", "32", *overlaps, *words)


if __name__ == "__main__":
    main()
