"""Small training runs through the command line: what to give it, and what it left behind."""

import json
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file

from holdover.cli import entry as cli

SHAPE = {
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "n_positions": 32,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
# Of what a log line says, that which is another every time.
TIMES = ("seconds", "tokens_per_second")


class OtherGradient(torch.autograd.Function):
    """The same value with a wrong gradient."""

    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 1.5 * gradient


def write_documents(path: Path, count: int = 6, words: int = 24, seed: int = 0) -> Path:
    """A text of several documents of different lengths, each begun by a line with a # in front."""
    draw = Random(seed)
    known = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(30)]
    texts = [
        f"# {number}\n" + " ".join(draw.choices(known, k=draw.randint(words // 2, words))) + "\n"
        for number in range(count)
    ]
    path.write_text("".join(texts))
    return path


def command(folder: Path, *words: str, resume: bool = False, **settings: Any) -> list[str]:
    """Arguments that train a tiny model on folder/text.txt into folder/run.

    Settings replace the flags of the same name, None leaves them out; words are put behind them.
    """
    text = folder / "text.txt"
    if not text.exists():
        write_documents(text)
    chosen: dict[str, Any] = {
        "model": "gpt2",
        "from_scratch": True,
        "shape": ",".join(f"{key}={value}" for key, value in SHAPE.items()),
        "tokenizer": "bytes",
        "data": text,
        "new_document": "^#",
        "window": 8,
        "windows": 2,
        "rows": 3,
        "max_steps": 10,
        "warm_up": 0,
        "lr": 1e-3,
        "device": "cpu",
        "cache_dir": folder / "cache",
        "output": folder / "run",
        **settings,
    }
    return ["train", *flags_of(chosen), *words, *(["--resume"] if resume else [])]


def flags_of(settings: dict[str, Any]) -> list[str]:
    """Settings as they are typed; None leaves one out."""
    flags = []
    for key, value in settings.items():
        name = key.replace("_", "-")
        if value is True or value is False:
            flags.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            flags += [f"--{name}", str(value)]
    return flags


def train(folder: Path, *words: str, **settings: Any) -> Path:
    """Run it to its end; returns its folder."""
    assert cli.main(command(folder, *words, **settings)) == 0
    return Path(settings.get("output", folder / "run"))


def refusal(capsys: Any, arguments: list[str]) -> str:
    """The one sentence on stderr of a request that ends with exit code 2."""
    capsys.readouterr()
    assert cli.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("holdover: ")
    assert said.count("\n") == 1, said
    assert said.endswith((".\n", "?\n")), said
    return said


def log_of(run: Path) -> list[dict[str, Any]]:
    """Every line of the log, which must all be strict JSON."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = (run / "log.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [line for line in log_of(run) if "loss" in line]


def validations_of(run: Path) -> list[dict[str, Any]]:
    return [line for line in log_of(run) if "valid_loss" in line]


def losses_of(run: Path) -> list[float]:
    return [line["loss"] for line in steps_of(run)]


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def checkpoints_of(run: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in run.glob("checkpoint-*"))


def best_of(run: Path) -> int:
    link = run / "best"
    assert link.is_symlink() and link.is_dir()
    return int(link.resolve().name.partition("-")[2])


def weights_of(run: Path, step: int) -> dict[str, Any]:
    return load_file(run / f"checkpoint-{step}" / "model.safetensors")
