"""Does recurrence inside attention help? Bits per character of XL, RSA-XL, BRT and RSA-BRT.

    HOLDOVER_DATA=... python experiments/attention_recurrence.py --output runs/enwik8 --data enwik8-204
    ... --data text8 --arms xl,rsa-xl          the same on text8
    ... --scale small --seeds 0,1,2            6 layers x 256, 5,000 steps: intervals over seeds
    ... --scale small --share 0.1,0.3,1.0      a part of the training text: sample efficiency
    ... --scale toy --data FOLDER              two cores, a minute: to see every stage work

All arms of a call read the same text in the same order for the same number of steps. A published
reproduction reports 5.07 bits for RSA-XL on enwik8, which is the entropy of its single characters, and
trained the arms for unequal numbers of steps.

* train:     one run for each arm, seed and share, as many side by side as --together says.
* evaluate:  the end of each run on the test split, read as in training.
* gates:     what the recurrences in attention came to, layer by layer.

`attention_recurrence_report.py` makes the record and the figures of it.
"""

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

import torch
from side_by_side import holdover, last_checkpoint, train, wait

from holdover.attach import open_model
from holdover.data.byte_encoder import SYMBOLS
from holdover.data.sources import open_source
from holdover.mechanisms.rem import RecurrenceEncoding
from holdover.results import write_record

WINDOW = 512
# The 14 layers of the RSA paper; everything else as in the original Transformer-XL.
SHAPES = {
    "real": {"n_layer": 14, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048},
    "small": {"n_layer": 6, "d_model": 256, "n_head": 8, "d_head": 32, "d_inner": 1024},
    "toy": {"n_layer": 3, "d_model": 16, "n_head": 4, "d_head": 4, "d_inner": 32},
}
# Layers from the top at which a block-recurrent model has its recurrent one.
FROM_TOP = 3
# RSA-XL's dilations, by text.
DILATIONS = {"text8": [6, 6, 12, 12]}
COMMON = {
    "model": "holdover_xl",
    "from_scratch": True,
    "windows": 1,
    "rows": 22,
    "learning_rate": 2.5e-4,
    "added_learning_rate": 2.5e-4,
    "schedule": "cosine",
    "warm_up": 0,
    "clip": 0.25,
    "epochs": 1000,
    "patience": None,
    "keep": 1,
    "save_every": 5000,
    "validate_every": 25_000_000,
    "validation_tokens": 500_000,
    "log_every": 200,
}
STEPS = {"real": 20_000, "small": 5_000, "toy": 4}
TOY = {"rows": 2, "validation_tokens": 600}
TOY_SHRINKS = 16
# A block-recurrent model learns its state through several blocks: the 512 tokens of a step are four
# blocks, read behind a memory that gives their queries as many keys on average as the others have.
BLOCKS = 4
BLOCK = WINDOW // BLOCKS
BLOCK_MEMORY = 704
# Tokens of the test text that are read with one memory: 20 such parts side by side.
PART = 249_856


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--data", default="enwik8-204", help="enwik8-204, enwik8, text8 or a folder"
    )
    parser.add_argument("--scale", choices=tuple(SHAPES), default="real")
    parser.add_argument("--arms", default="xl,rsa-xl,rsa-xl-small,brt,rsa-brt")
    parser.add_argument("--steps", type=int, help="default: " + str(STEPS))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--share", default="1.0", help="of the training text, from its beginning")
    parser.add_argument("--together", type=int, default=5, help="runs side by side")
    parser.add_argument("--stages", default="train,evaluate,gates")
    options = parser.parse_args()
    stages = options.stages.split(",")
    runs = {
        f"{arm}-{seed}-{share}": settings(options, arm, int(seed), float(share))
        for share, seed, arm in product(
            options.share.split(","), options.seeds.split(","), options.arms.split(",")
        )
    }
    names = list(runs)
    for first in range(0, len(names), options.together):
        part = [(name, options.output / name) for name in names[first : first + options.together]]
        if "train" in stages:
            wait([train(folder, runs[name]) for name, folder in part])
        if "evaluate" in stages:
            wait([evaluate(folder, runs[name], options.data) for name, folder in part])
        if "gates" in stages:
            for name, folder in part:
                if "rsa" in name:
                    write_record(folder / "gates.json", gates_of(last_checkpoint(folder)))


def settings(options: argparse.Namespace, arm: str, seed: int, share: float) -> dict[str, Any]:
    """Of one run."""
    real = options.scale != "toy"
    shape: dict[str, Any] = dict(SHAPES[options.scale])
    if arm.endswith("-small"):
        # The reproduction's script; its text says 8 instead of 256.
        shape |= {"n_layer": 7, "d_model": 256}
    if arm.startswith("rsa"):
        shape |= {"attention": "rsa", "rem_dilations": DILATIONS.get(options.data, [3, 6, 9, 12])}
    recurrence: dict[str, Any] = {"carry": "memory", "window": WINDOW}
    chosen: dict[str, Any] = dict(COMMON)
    if "brt" in arm:
        shape["recurrent_layers"] = [shape["n_layer"] - FROM_TOP + 1]
        recurrence = {"carry": "blocks", "window": BLOCK, "memory_length": BLOCK_MEMORY}
        chosen["windows"] = BLOCKS
    if not real:
        shape["state_vectors"] = 8
        for name in recurrence.keys() & {"window", "memory_length"}:
            recurrence[name] //= TOY_SHRINKS
    tokenizer = options.data if options.data in SYMBOLS else "bytes"
    chosen |= {
        "data": part_of(options.data, share, options.output),
        "tokenizer": tokenizer,
        "shape": shape,
        "recurrence": recurrence,
        "seed": seed,
        "max_steps": options.steps or STEPS[options.scale],
        "bf16": torch.cuda.is_available(),
        "compile": torch.cuda.is_available(),
    }
    return chosen if real else chosen | TOY


def part_of(data: str, share: float, output: Path) -> str:
    """A corpus, or a folder with the beginning of its training text and the rest as it is."""
    if share == 1.0:
        return data
    folder = output / f"{Path(data).name}-{share}"
    for split in ("train", "valid", "test"):
        path = folder / split / "text.txt"
        if path.exists():
            continue
        (document,) = open_source(data, split).documents()
        text = b"".join(document.read())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text[: int(len(text) * share)] if split == "train" else text)
    return str(folder)


def evaluate(run: Path, chosen: dict[str, Any], data: str) -> Any:
    where = ["--model", str(last_checkpoint(run)), "--data", data, "--output", str(run / "eval")]
    # The text in parts side by side, each of which begins without a memory.
    windows = PART // chosen["recurrence"]["window"]
    parts = ["--carry", str(windows), "--rows", "20"]
    return holdover("eval", *where, *parts, "--no-diagnose-state", "--no-metrics")


def gates_of(checkpoint: Path) -> dict[str, Any]:
    """For every layer with a recurrence the gate, and of its heads what they weigh."""
    layers = []
    for name, module in open_model(str(checkpoint)).named_modules():
        if isinstance(module, RecurrenceEncoding):
            kernels = module()
            layers.append(
                {
                    "layer": name,
                    "gate": float(module.gate().detach()),
                    "kinds": list(module.kinds),
                    "dilations": list(module.dilations),
                    "rates": kernels.rate.detach().tolist(),
                    "angles": kernels.angle.detach().tolist(),
                }
            )
    return {"record": "gates", "layers": json.loads(json.dumps(layers))}


if __name__ == "__main__":
    main()
