"""The arms of the three questions: models of one size, their recurrence and training."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scale:
    layers: int
    width: int
    heads: int
    window: int
    wider: int  # n_inner of a GPT-2 with as many weights as one with a pooled state
    texts: dict[str, tuple[str, dict[str, Any]]]  # corpus, and how much of its test split is read
    train: dict[str, Any]
    read: dict[str, Any]
    overlaps: tuple[int, ...]  # for plain models
    timed_steps: int
    # Changes to the training settings for models that are trained to the end instead of only timed.
    to_the_end: dict[str, Any] = field(default_factory=dict)
    # The number of steps of these models, and of the models compared with them.
    steps: dict[str, int] = field(default_factory=dict)
    # Learning rates to choose from, by model; default: the rate in `train`.
    rates: dict[str, tuple[float, ...]] = field(default_factory=dict)


COMMON = {
    "tokenizer": "bytes",
    "from_scratch": True,
    "schedule": "cosine",
    "learning_rate": 1e-3,
    "added_learning_rate": 1e-3,
    "epochs": 1000,
    "patience": None,
    "keep": 1,
    "log_every": 50,
}
GPT2, WIDER, XLNET, XL, BRT = "GPT-2", "wider GPT-2", "XLNet", "Transformer-XL", "Block-Recurrent"
# Enwik8 is one document: its state is reset regularly, so that parts can be read in parallel.
TEXTS = {
    "enwik8": ("enwik8", {"document_tokens": 200_000, "carry": 100}),
    "books": ("pg19", {"document_tokens": 50_000}),
}
READ = {"rows": 256, "bf16": True, "history": 1}
SCALES = {
    "smoke": Scale(
        layers=2,
        width=16,
        heads=2,
        window=24,
        wider=1383,
        rates={GPT2: (5e-4, 1e-3), XLNET: (5e-4,)},
        overlaps=(0, 4, 8),
        timed_steps=4,
        texts={"novel": ("time-machine", {"document_tokens": 300})},
        train={"rows": 2, "windows": 2, "max_steps": 2, "warm_up": 1, "validation_tokens": 120},
        read={"timed_windows": 2, "diagnose_windows": 4, "history": 1},
    ),
    "small": Scale(
        layers=4,
        width=256,
        heads=4,
        window=256,
        wider=1114,
        overlaps=(0, 4, 16, 32, 64, 128),
        timed_steps=16,
        texts=TEXTS,
        train={"rows": 16, "windows": 6, "max_steps": 1000, "warm_up": 100, "bf16": True}
        | {"validation_tokens": 30_000, "validate_every": 6_000_000, "save_every": 10_000},
        read=READ,
    ),
    "real": Scale(
        layers=12,
        width=768,
        heads=12,
        window=512,
        wider=3094,
        overlaps=(0, 8, 32, 64, 128, 256),
        timed_steps=16,
        texts=TEXTS,
        # XLNet keeps several attention matrices: more windows per step would not fit on a GPU.
        train={"rows": 8, "windows": 4, "max_steps": 1000, "warm_up": 100, "bf16": True}
        | {"validation_tokens": 30_000, "validate_every": 4_000_000, "save_every": 10_000},
        read=READ | {"rows": 64},
        to_the_end={"rows": 4, "validate_every": 1_500_000},
        # Positions are learnt slowly: after 1,000 steps GPT-2 did not use its context yet.
        steps=dict.fromkeys((GPT2, XL, BRT), 2000),
        # All but GPT-2 have post-norm layers: twelve of them do not train at a higher rate.
        rates=dict.fromkeys((GPT2, XLNET, XL, BRT), (3e-4,)),
    ),
}
# Model, recurrence, and the arm it is compared with.
ARMS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "GPT-2": (GPT2, {"carry": "none"}, None),
    "GPT-2, as many weights": (WIDER, {"carry": "none"}, "GPT-2"),
    "GPT-2, pooled state": (GPT2, {"carry": "pooled"}, "GPT-2"),
    "GPT-2, memory tokens": (GPT2, {"carry": "tokens", "slots": 16, "map_hidden": []}, "GPT-2"),
    "XLNet": (XLNET, {"carry": "none"}, None),
    "XLNet, pooled state": (XLNET, {"carry": "pooled"}, "XLNet"),
    "XLNet, its own memory": (XLNET, {"carry": "memory"}, "XLNet"),
    "Transformer-XL": (XL, {"carry": "memory"}, "GPT-2"),
    "Block-Recurrent": (BRT, {"carry": "blocks"}, "GPT-2"),
}
# Drawn together: the models compared with GPT-2, and those compared with XLNet.
FAMILIES = {
    f"{base} and models compared with it": [
        arm for arm, (_, _, its_base) in ARMS.items() if base in (arm, its_base)
    ]
    for base in (GPT2, XLNET)
}
# The runs that measure the cost of all arms.
COST = "cost"


def settings_of(arm: str, scale: Scale) -> dict[str, Any]:
    model, recurrence, _ = ARMS[arm]
    return {
        "model": shape_of(model, scale),
        "recurrence": {"window": scale.window, **recurrence},
        "train": {**COMMON, **scale.train},
        "read": scale.read,
    }


def to_the_end(arm: str, scale: Scale, corpus: str, rates: Sequence[float]) -> dict[str, Any]:
    """Settings of a model that is trained to the end, at one of these rates."""
    settings = {**settings_of(arm, scale), "data": corpus}
    settings["train"] |= scale.to_the_end
    if steps := scale.steps.get(model_of(arm)):
        settings["train"]["max_steps"] = steps
    if len(rates) == 1:
        settings["train"] |= at(*rates)
    elif rates:
        for name in at(0.0):
            del settings["train"][name]
        settings["rates"] = list(rates)
    return settings


def model_of(arm: str) -> str:
    """The model of an arm, regardless of width."""
    model, _, _ = ARMS[arm]
    return GPT2 if model == WIDER else model


def at(rate: float) -> dict[str, float]:
    return {"learning_rate": rate, "added_learning_rate": rate}


def arm_at(rate: float, model: str) -> str:
    return f"rate {rate:g} {model}"


def carries(arm: str) -> bool:
    return ARMS[arm][1]["carry"] != "none"


def shape_of(model: str, scale: Scale) -> dict[str, Any]:
    """All models have the same layers, width and heads."""
    if model in (GPT2, WIDER):
        shape = {"n_layer": scale.layers, "n_embd": scale.width, "n_head": scale.heads}
        shape |= {"n_positions": 2 * scale.window + 32}
        return {
            "model": "gpt2",
            "shape": shape | ({"n_inner": scale.wider} if model == WIDER else {}),
        }
    shape = {"n_layer": scale.layers, "d_model": scale.width, "n_head": scale.heads}
    shape |= {"d_inner": 4 * scale.width, "d_head": scale.width // scale.heads}
    if model == XLNET:
        return {"model": "xlnet", "shape": shape}
    if model == BRT:
        shape |= {"recurrent_layers": [scale.layers - 1], "state_vectors": scale.window}
    return {"model": "holdover_xl", "shape": shape}
