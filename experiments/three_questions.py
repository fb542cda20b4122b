"""The project's three questions, on GPT-2 and XLNet: does recurrence help, against what, at what cost?

    holdover run experiments/three_questions.py --scale small

GPT-2 and XLNet with random weights (none can be had pretrained here for bytes), each plain and with
window recurrence, XLNet also with its own memory, and Transformer-XL's and the block-recurrent one's
beside them: the same bytes in the same order, on enwik8 and on books.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdover.attach import RUN, read_run
from holdover.experiment import (
    Claim,
    Expectation,
    Experiment,
    Figure,
    Layout,
    Run,
    Series,
    Table,
    Threats,
    Value,
    Work,
    last_checkpoint,
    log_of,
    of_evaluation,
    training_memory,
)


@dataclass(frozen=True)
class Scale:
    layers: int
    width: int
    heads: int
    window: int
    texts: dict[str, str]
    train: dict[str, Any]
    read: dict[str, Any]


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
TEXTS = {"enwik8": "enwik8", "books": "pg19"}
SCALES = {
    "smoke": Scale(
        layers=2,
        width=16,
        heads=2,
        window=24,
        texts={"novel": "time-machine"},
        train={"rows": 2, "windows": 2, "max_steps": 2, "warm_up": 1, "validation_tokens": 120},
        read={"document_tokens": 300, "timed_windows": 2, "diagnose_windows": 4, "history": 1},
    ),
    "small": Scale(
        layers=4,
        width=256,
        heads=4,
        window=256,
        texts=TEXTS,
        train={"rows": 32, "windows": 8, "max_steps": 1500, "warm_up": 100, "bf16": True}
        | {"validation_tokens": 200_000, "validate_every": 10_000_000},
        read={"document_tokens": 200_000, "rows": 32, "carry": 400},
    ),
    "real": Scale(
        layers=12,
        width=768,
        heads=12,
        window=512,
        texts=TEXTS,
        train={"rows": 16, "windows": 8, "max_steps": 4000, "warm_up": 400, "bf16": True}
        | {"validation_tokens": 200_000, "validate_every": 25_000_000},
        read={"document_tokens": 200_000, "rows": 32, "carry": 400},
    ),
}
GPT2, XLNET, XL, BRT = "GPT-2", "XLNet", "Transformer-XL", "Block-Recurrent"
# Model, what it carries, and the arm it is compared with.
ARMS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "GPT-2": (GPT2, {"carry": "none"}, None),
    "GPT-2, pooled state": (GPT2, {"carry": "pooled"}, "GPT-2"),
    "GPT-2, memory tokens": (GPT2, {"carry": "tokens", "slots": 16, "map_hidden": []}, "GPT-2"),
    "XLNet": (XLNET, {"carry": "none"}, None),
    "XLNet, pooled state": (XLNET, {"carry": "pooled"}, "XLNet"),
    "XLNet, its own memory": (XLNET, {"carry": "memory"}, "XLNet"),
    "Transformer-XL": (XL, {"carry": "memory"}, "GPT-2"),
    "Block-Recurrent": (BRT, {"carry": "blocks"}, "GPT-2"),
}
QUALITY = (
    "model",
    "bits a byte",
    "above its base",
    "without its state",
    "another text's state",
    "FLOPs a token",
    "weights",
)
COST = (
    "model",
    "training, bytes/s",
    "time over its base",
    "training memory",
    "above its base",
    "reading, bytes/s",
    "over its base",
)
# Of the project's plan: what recurrence may cost.
MOST_TIME, LEAST_SPEED, MOST_MEMORY = 1.20, 0.95, 2e9


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    found = []
    for seed in seeds:
        for text, corpus in SCALES[scale].texts.items():
            for arm, (model, recurrence, base) in ARMS.items():
                settings = {
                    "data": corpus,
                    "model": shape_of(model, SCALES[scale]),
                    "recurrence": {"window": SCALES[scale].window, **recurrence},
                    "train": {**COMMON, **SCALES[scale].train},
                    "read": SCALES[scale].read,
                }
                after = () if base is None else (Run(f"{text}: {base}", measure, {}, seed).name,)
                found.append(Run(f"{text}: {arm}", measure, settings, seed, after))
    return found


def shape_of(model: str, scale: Scale) -> dict[str, Any]:
    """The same layers, width and heads for all."""
    if model == GPT2:
        shape = {"n_layer": scale.layers, "n_embd": scale.width, "n_head": scale.heads}
        positions = {"n_positions": 2 * scale.window + 32}
        return {"model": "gpt2", "shape": {**shape, **positions}}
    shape = {"n_layer": scale.layers, "d_model": scale.width, "n_head": scale.heads}
    shape |= {"d_inner": 4 * scale.width, "d_head": scale.width // scale.heads}
    if model == XLNET:
        return {"model": "xlnet", "shape": shape}
    if model == BRT:
        shape |= {"recurrent_layers": [scale.layers - 1], "state_vectors": scale.window}
    return {"model": "holdover_xl", "shape": shape}


def measure(work: Work) -> dict[str, Any]:
    settings = work.settings
    run = work.train(
        data=settings["data"],
        **settings["model"],
        **settings["train"],
        recurrence=settings["recurrence"],
    )
    model = last_checkpoint(run)
    work.read(read_run(model / RUN)["data"]["training"])
    record = work.evaluate(model, data=settings["data"], **settings["read"])
    measures = of_evaluation(record)
    measures["parameters"] = record["model"]["parameters"]["all"]
    measures |= speed_of(run)
    measures["training_memory"] = training_memory(run)
    for base in work.found.values():
        measures |= against(measures, base)
    by_position = record["rows"][0]["loss_by_position"]
    every = max(1, len(by_position) // 32)
    measures["curves"] = {
        "loss by position": [
            [place, round(loss, 4)]
            for place, loss in enumerate(by_position)
            if loss is not None and place % every == 0
        ],
        "validation": validations(run),
    }
    return measures


def speed_of(run: Path) -> dict[str, float]:
    speeds = [line["tokens_per_second"] for line in log_of(run) if line.get("tokens_per_second")]
    return {"training_speed": statistics.median(speeds)}


def against(ours: dict[str, Any], base: dict[str, Any]) -> dict[str, float]:
    """What recurrence costs, as the plan has it: ratios to the model without."""
    return {
        "reading_speed_ratio": ours["tokens_per_second"] / base["tokens_per_second"],
        "training_time_ratio": base["training_speed"] / ours["training_speed"],
        "training_memory_above": ours["training_memory"] - base["training_memory"],
    }


def validations(run: Path) -> list[list[float]]:
    return [
        [line["tokens"], round(line["valid_loss"], 4)]
        for line in log_of(run)
        if "valid_loss" in line
    ]


def layout(scale: str) -> Layout:
    texts = tuple(SCALES[scale].texts)
    recurrent = [(arm, base) for arm, (_, _, base) in ARMS.items() if base in ("GPT-2", "XLNet")]
    own = [(arm, base) for arm, base in recurrent if arm.startswith((GPT2, XLNET))]
    return Layout(
        claims=[
            Claim(
                "Recurrence lowers the loss of the same architecture.",
                "question 1: long-range modelling",
                [
                    Expectation(above(text, arm, base), "below", said=f"{text}, {arm}")
                    for text in texts
                    for arm, base in own
                ],
            ),
            Claim(
                "Window recurrence is as good as the memory XLNet has by itself.",
                "question 2: quality against others",
                [
                    Expectation(
                        above(text, "XLNet, pooled state", "XLNet, its own memory"),
                        "below",
                        said=text,
                    )
                    for text in texts
                ],
            ),
            Claim(
                "It costs at most 20 % more training time and 2 GB more memory, and reads at most 5 % "
                "slower.",
                "question 3: cost, the plan's own budget",
                [
                    Expectation(
                        Value(metric, f"{text}: {arm}"), side, bound, f"{text}, {arm}, {said}"
                    )
                    for text in texts
                    for arm, _ in own
                    for metric, side, bound, said in (
                        ("training_time_ratio", "below", MOST_TIME, "training time"),
                        ("reading_speed_ratio", "above", LEAST_SPEED, "reading speed"),
                        ("training_memory_above", "below", MOST_MEMORY, "memory"),
                    )
                ],
            ),
        ],
        tables=[table for text in texts for table in (quality(text), next_token(text), cost(text))],
        figures=[
            figure
            for text in texts
            for figure in (
                curves(text, "loss by position", "position in the window", "loss (nats a byte)"),
                curves(text, "validation", "bytes read in training", "validation loss"),
            )
        ],
        threats=Threats(
            external=["Random weights and bytes: nothing here was pretrained on other text."],
            internal=[
                "One learning rate for all; uncompiled steps, so that all pay the same overhead."
            ],
        ),
    )


def above(text: str, arm: str, base: str) -> Value:
    return Value("loss", f"{text}: {arm}", f"{text}: {base}", "{:+.4f}")


def quality(text: str) -> Table:
    return Table(
        f"Quality on {text}",
        QUALITY,
        [
            [
                arm,
                Value("bits_per_byte", f"{text}: {arm}", form="{:.3f}"),
                "" if base is None else above(text, arm, base),
                "" if base is None else Value("state_zeroed", f"{text}: {arm}", form="{:+.4f}"),
                "" if base is None else Value("state_other", f"{text}: {arm}", form="{:+.4f}"),
                Value("flops_counted", f"{text}: {arm}", form="{:.3g}"),
                Value("parameters", f"{text}: {arm}", form="{:,.0f}"),
            ]
            for arm, (_, _, base) in ARMS.items()
        ],
        "Above its base: nats a byte above the same architecture without a state (the last two: above "
        "GPT-2), paired.",
    )


def next_token(text: str) -> Table:
    metrics = {
        "top1_accuracy": "accuracy",
        "macro_precision": "precision",
        "macro_recall": "recall",
        "macro_f1": "F1",
        "macro_auc": "AUC",
    }
    return Table(
        f"The next byte as a class, on {text}",
        ("model", *metrics.values()),
        [
            [arm, *(Value(metric, f"{text}: {arm}", form="{:.4f}") for metric in metrics)]
            for arm in ARMS
        ],
        "Precision, recall, F1 and AUC are means over the bytes that occur.",
    )


def cost(text: str) -> Table:
    return Table(
        f"Cost on {text}",
        COST,
        [
            [
                arm,
                Value("training_speed", f"{text}: {arm}", form="{:,.0f}"),
                "" if base is None else Value("training_time_ratio", f"{text}: {arm}"),
                Value("training_memory", f"{text}: {arm}", form="{:.3g}"),
                ""
                if base is None
                else Value("training_memory_above", f"{text}: {arm}", form="{:+.3g}"),
                Value("tokens_per_second", f"{text}: {arm}", form="{:,.0f}"),
                "" if base is None else Value("reading_speed_ratio", f"{text}: {arm}"),
            ]
            for arm, (_, _, base) in ARMS.items()
        ],
        "Uncompiled, several runs may have shared the device: compare ratios, not speeds.",
    )


def curves(text: str, name: str, x: str, y: str) -> Figure:
    return Figure(
        f"{y.capitalize()} over {x}: {text}",
        x,
        y,
        [Series(arm, curve=(f"{text}: {arm}", name)) for arm in ARMS],
    )


EXPERIMENT = Experiment(
    title="Three questions: long range, quality, cost",
    question="Does recurrence improve what GPT-2 and XLNet do with long texts, how does it compare with "
    "other memories, and what does it cost?",
    source="the research plan's three questions",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2), "real": (0,)},
)
