"""The project's three questions, on GPT-2 and XLNet: does recurrence help, against what, at what cost?

    holdover run experiments/three_questions.py --scale small --together 8

GPT-2 and XLNet with random weights (none can be had pretrained here for bytes), each plain and with
window recurrence, XLNet also with its own memory, and Transformer-XL's and the block-recurrent one's
beside them: the same bytes in the same order, on enwik8 and on books. What they cost is measured apart,
by runs of all of them one after the other, with nothing beside; what a plain model reaches at the same
cost, by GPT-2 with as many weights as with a state, and by plain models whose windows overlap as much as
the FLOPs allow. At the larger scale each model's learning rate is tried first, on enwik8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from holdover.attach import RUN, read_run
from holdover.experiment import (
    Cell,
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
    paired_difference,
    resident_memory,
    training_memory,
)
from holdover.page.wording import scaled


@dataclass(frozen=True)
class Scale:
    layers: int
    width: int
    heads: int
    window: int
    wider: int  # n_inner of a GPT-2 that has as many weights as one with a pooled state
    texts: dict[str, tuple[str, dict[str, Any]]]  # corpus, and how much of its test part is read
    train: dict[str, Any]
    read: dict[str, Any]
    overlaps: tuple[int, ...]  # plain models are read at
    timed_steps: int
    # What models that are trained to their end have otherwise than those that are timed for a few steps.
    to_the_end: dict[str, Any] = field(default_factory=dict)
    # Learning rates to choose from, by model; none: that of `train`.
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
# Enwik8 is one document: its state is forgotten now and then, so that parts are read side by side.
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
        # XLNet keeps several matrices of attention: more windows a step would not fit on a card.
        train={"rows": 8, "windows": 4, "max_steps": 1000, "warm_up": 100, "bf16": True}
        | {"validation_tokens": 30_000, "validate_every": 4_000_000, "save_every": 10_000},
        read=READ | {"rows": 64},
        to_the_end={"rows": 4, "validate_every": 1_500_000},
        # Twelve layers with norms behind them, as XLNet's, bear less than others.
        rates={GPT2: (3e-4, 1e-3), XLNET: (3e-4,), XL: (3e-4, 1e-3), BRT: (3e-4, 1e-3)},
    ),
}
# Model, what it carries, and the arm it is compared with.
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
# Drawn together: what is compared with GPT-2, and what with XLNet.
FAMILIES = {
    f"{base} and what is compared with it": [
        arm for arm, (_, _, its_base) in ARMS.items() if base in (arm, its_base)
    ]
    for base in (GPT2, XLNET)
}
QUALITY = (
    "model",
    "bits a byte",
    "above its base",
    "at equal FLOPs",
    "overlap of that",
    "converged after",
    "without its state",
    "another text's state",
    "FLOPs a token",
    "weights",
)
# Nats a byte within which two models count as equally good.
ALIKE = 0.005
# The runs that measure what all arms cost, and what is read for that: rows, and windows of each.
COST = "cost"
READ_AT_ONCE, TIMED_WINDOWS = 16, 5
COSTS = (
    "model",
    "training, bytes/s",
    "time over its base",
    "training memory, GB",
    "above its base",
    "the machine's own, GB",
    "above its base",
    "reading, bytes/s",
    "over its base",
)
# Of the project's plan: what recurrence may cost.
GB = 1e9
MOST_TIME, LEAST_SPEED, MOST_MEMORY, MOST_RESIDENT = 1.20, 0.95, 2 * GB, 16 * GB


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    chosen = SCALES[scale]
    (first, _), *_ = chosen.texts.values()
    tried = {
        model: [
            Run(arm_at(rate, model), try_rate, to_the_end(model, chosen, first, (rate,)), seeds[0])
            for rate in rates
        ]
        for model, rates in chosen.rates.items()
        if len(rates) > 1
    }
    found = [run for of_model in tried.values() for run in of_model]
    for seed in seeds:
        for text, (corpus, limits) in chosen.texts.items():
            for arm, (model, recurrence, base) in ARMS.items():
                plain = recurrence["carry"] == "none"
                model = GPT2 if model == WIDER else model
                settings = {
                    **to_the_end(arm, chosen, corpus, chosen.rates.get(model, ())),
                    "limits": limits,
                    "overlaps": list(chosen.overlaps) if plain else [0],
                }
                after = tuple(run.name for run in tried.get(model, ()))
                after += () if base is None else (Run(f"{text}: {base}", measure, {}, seed).name,)
                found.append(Run(f"{text}: {arm}", measure, settings, seed, after))
    timed = {
        "arms": {arm: settings_of(arm, chosen) for arm in ARMS},
        "data": next(iter(chosen.texts.values()))[0],
        "steps": chosen.timed_steps,
    }
    return [*found, *(Run(COST, measure_cost, timed, seed, alone=True) for seed in seeds)]


def settings_of(arm: str, scale: Scale) -> dict[str, Any]:
    model, recurrence, _ = ARMS[arm]
    return {
        "model": shape_of(model, scale),
        "recurrence": {"window": scale.window, **recurrence},
        "train": {**COMMON, **scale.train},
        "read": scale.read,
    }


def to_the_end(arm: str, scale: Scale, corpus: str, rates: Sequence[float]) -> dict[str, Any]:
    """Settings of a model that is trained to its end, at one of these rates."""
    settings = {**settings_of(arm, scale), "data": corpus}
    settings["train"] |= scale.to_the_end
    if len(rates) == 1:
        settings["train"] |= at(*rates)
    elif rates:
        for name in at(0.0):
            del settings["train"][name]
        settings["rates"] = list(rates)
    return settings


def at(rate: float) -> dict[str, float]:
    return {"learning_rate": rate, "added_learning_rate": rate}


def arm_at(rate: float, model: str) -> str:
    return f"rate {rate:g} {model}"


def shape_of(model: str, scale: Scale) -> dict[str, Any]:
    """The same layers, width and heads for all."""
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


def try_rate(work: Work) -> dict[str, Any]:
    rate = work.settings["train"]["learning_rate"]
    return {"rate": rate, "valid_loss": validations(trained(work, rate))[-1][1]}


def chosen_rate(work: Work) -> float:
    """The one whose last validation was best where it was tried, or the only one."""
    tried = [one for one in work.found.values() if "rate" in one]
    if not tried:
        return work.settings["train"]["learning_rate"]
    return min(tried, key=lambda one: one["valid_loss"])["rate"]


def trained(work: Work, rate: float) -> Path:
    settings, model = work.settings, work.settings["model"]
    xlnet = model["model"] == "xlnet"
    # A width that no tile of 8 numbers fits is compiled wrongly by torch 2.11, and so refused.
    odd = model["shape"].get("n_inner", 0) % 8
    return work.train(
        data=settings["data"],
        **model,
        **{**settings["train"], **at(rate)},
        recurrence=settings["recurrence"],
        # The same steps, only faster: no settings. Records of a wide XLNet's would not fit on a card.
        faster={
            "compile": not odd,
            "replay": not xlnet or model["shape"]["d_model"] < 512,
        },
        made=[other / "train" for other in work.others.values()],
    )


def measure(work: Work) -> dict[str, Any]:
    settings, rate = work.settings, chosen_rate(work)
    run = trained(work, rate)
    end = last_checkpoint(run)
    work.read(read_run(end / RUN)["data"]["training"])
    how = {"data": settings["data"], **settings["limits"], **settings["read"]}
    none, *overlaps = settings["overlaps"]
    record = work.evaluate(end, overlap=[none], **how)
    measures = of_evaluation(record)
    if overlaps:
        others = work.evaluate(end, "overlaps", overlap=overlaps, **how | {"metrics": False})
        for number, overlap in enumerate(overlaps):
            part = of_evaluation(others, number)
            measures |= {f"{name}@{overlap}": part[name] for name in ("loss", "flops_counted")}
    measures["parameters"] = record["model"]["parameters"]["all"]
    measures["validation_loss"] = validations(run)[-1][1]
    measures["learning_rate"] = rate
    for base in work.found.values():
        if "validation_loss" in base:
            measures |= at_equal_flops(measures, base)
            measures |= convergence(validations(run), base["validation_loss"])
    (row,) = record["rows"]
    every = max(1, len(row["loss_by_position"]) // 32)
    measures["curves"] = {
        "loss by position": [
            [place, round(loss, 4)]
            for place, loss in enumerate(row["loss_by_position"])
            if loss is not None and place % every == 0
        ],
        "loss by distance": [
            [part["to"], round(part["loss"], 4)] for part in row["loss_by_distance"]
        ],
        "validation": validations(run),
    }
    return measures


def convergence(ours: list[list[float]], base: float) -> dict[str, float]:
    """Part of the training after which the validation loss is what the base ends at; nothing where it
    never is. Between two validations a straight line."""
    for (begin, before), (end, after) in pairwise(ours):
        if after <= base:
            part = (before - base) / (before - after) if before > base else 0.0
            return {"converged_after": (begin + part * (end - begin)) / ours[-1][0]}
    return {}


def at_equal_flops(ours: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Against the plain model at the largest overlap that costs no more FLOPs a token than we do."""
    reached = [("loss", base["flops_counted"], 0.0)]
    reached += [
        (f"loss@{overlap}", flops, float(overlap))
        for name, flops in base.items()
        if (overlap := name.partition("flops_counted@")[2])
    ]
    within = [one for one in reached if one[1] <= ours["flops_counted"]] or reached[:1]
    metric, _, overlap = max(within, key=lambda one: one[2])
    found = paired_difference(ours["loss"], base[metric])
    return {"above_at_equal_flops": found, "overlap_at_equal_flops": overlap}


def measure_cost(work: Work) -> dict[str, Any]:
    """Every arm trained for some steps as it is written, and read, one after the other."""
    measures: dict[str, Any] = {}
    for number, (arm, settings) in enumerate(work.settings["arms"].items()):
        run = work.train(
            f"train-{number}",
            data=work.settings["data"],
            **settings["model"],
            **{**settings["train"], "max_steps": work.settings["steps"], "validation_tokens": 1000},
            recurrence=settings["recurrence"],
        )
        # As many rows for all: of a recurrent model, texts of a few windows each.
        window, rows = settings["recurrence"]["window"], READ_AT_ONCE
        read = settings["read"] | {
            "rows": rows,
            "carry": TIMED_WINDOWS,
            "timed_windows": rows * TIMED_WINDOWS,
            "document_tokens": rows * TIMED_WINDOWS * window + 1,
        }
        record = work.evaluate(
            last_checkpoint(run), f"eval-{number}", data=work.settings["data"], **read
        )
        assert record["rows"][0]["rows_side_by_side"] == rows, "arms are read side by side alike"
        found = of_evaluation(record)
        measures |= {
            f"training_speed: {arm}": speed_of(run),
            f"training_memory: {arm}": training_memory(run),
            f"resident: {arm}": resident_memory(run),
            f"reading_speed: {arm}": found["tokens_per_second"],
            f"reading_memory: {arm}": found["reading_memory"],
        }
        if base := ARMS[arm][2]:
            measures |= against(measures, arm, base)
    return measures


def speed_of(run: Path) -> float:
    """Of the later half of the steps: the first ones look for kernels, and the last one is logged as
    soon as it is begun."""
    *steps, _ = [line for line in log_of(run) if "loss" in line]
    first, last = steps[(len(steps) - 1) // 2], steps[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def against(found: dict[str, Any], arm: str, base: str) -> dict[str, float]:
    """What recurrence costs, as the plan has it: ratios to the model without."""

    def both(name: str) -> tuple[float, float]:
        return found[f"{name}: {arm}"], found[f"{name}: {base}"]

    (reads, base_reads), (trains, base_trains) = both("reading_speed"), both("training_speed")
    above = {
        f"{name}_above: {arm}": ours - its
        for name in ("training_memory", "resident")
        for ours, its in [both(name)]
    }
    return above | {
        f"reading_speed_ratio: {arm}": reads / base_reads,
        f"training_time_ratio: {arm}": base_trains / trains,
    }


def validations(run: Path) -> list[list[float]]:
    return [
        [line["tokens"], round(line["valid_loss"], 4)]
        for line in log_of(run)
        if "valid_loss" in line
    ]


def layout(scale: str) -> Layout:
    chosen = SCALES[scale]
    texts, how = tuple(chosen.texts), chosen.train | chosen.to_the_end
    read = how["max_steps"] * how["rows"] * how["windows"] * chosen.window
    recurrent = [(arm, base) for arm, (_, _, base) in ARMS.items() if base in ("GPT-2", "XLNet")]
    own = [(arm, base) for arm, base in recurrent if arm.startswith((GPT2, XLNET)) and carries(arm)]
    return Layout(
        done=f"Models of {chosen.layers} layers x {chosen.width} with random weights, each trained on "
        f"{' and on '.join(texts)}: {how['max_steps']:,} steps of {how['rows']} rows x {how['windows']} "
        f"windows of {chosen.window} bytes, {scaled(read)} bytes in all, the same for every arm.",
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
                f"Window recurrence is as good as the memory XLNet has by itself, or not more than "
                f"{ALIKE} nats a byte worse.",
                "question 2: quality against others",
                [
                    Expectation(
                        above(text, "XLNet, pooled state", "XLNet, its own memory"),
                        "below",
                        ALIKE,
                        text,
                    )
                    for text in texts
                ],
            ),
            Claim(
                "A pooled state is better than as many weights without one.",
                "question 2: quality at equal parameters",
                [
                    Expectation(
                        above(text, "GPT-2, pooled state", "GPT-2, as many weights"),
                        "below",
                        said=text,
                    )
                    for text in texts
                ],
            ),
            Claim(
                "Recurrence is better than windows that overlap as far as the same FLOPs allow.",
                "question 2: quality at equal FLOPs",
                [
                    Expectation(
                        Value("above_at_equal_flops", f"{text}: {arm}", form="{:+.4f}"),
                        "below",
                        said=f"{text}, {arm}",
                    )
                    for text in texts
                    for arm, _ in own
                ],
            ),
            Claim(
                "Recurrence costs at most 20 % more training time, 2 GB more memory of the device and "
                "16 GB of the machine, and reads at most 5 % slower.",
                "question 3: cost, the plan's own budget",
                [
                    Expectation(
                        Value(
                            f"{metric}: {arm}",
                            COST,
                            form=form,
                            counted=metric == "training_memory_above",
                            unit=GB if said.endswith("GB") else 1.0,
                        ),
                        side,
                        bound,
                        f"{arm}, {said}",
                    )
                    for arm, _ in own
                    for metric, form, side, bound, said in (
                        ("training_time_ratio", "{:.2f}", "below", MOST_TIME, "training time"),
                        ("reading_speed_ratio", "{:.2f}", "above", LEAST_SPEED, "reading speed"),
                        ("training_memory_above", "{:+.2f}", "below", MOST_MEMORY, "memory, GB"),
                        (
                            "resident_above",
                            "{:+.2f}",
                            "below",
                            MOST_RESIDENT,
                            "the machine's memory, GB",
                        ),
                    )
                ],
            ),
        ],
        tables=[
            *([rates_table(chosen)] if chosen.rates else []),
            *(table for text in texts for table in (quality(text), next_token(text))),
            cost(chosen),
        ],
        figures=[
            figure
            for text in texts
            for figure in (
                *(
                    curves(text, group, "loss by position", "position in the window", "loss")
                    for group in FAMILIES
                ),
                distances(text),
                *(
                    curves(text, group, "validation", "bytes read in training", "validation loss")
                    for group in FAMILIES
                ),
            )
        ],
        threats=Threats(
            external=[
                "Random weights and bytes: nothing here was pretrained on other text.",
                *(f"Of {text}: {limits_of(limits)}." for text, (_, limits) in chosen.texts.items()),
            ],
            internal=[
                "Learning rates are chosen for a model as it is and used for all that it carries, from "
                "short lists: tried on one text, with one seed, by the last validation. XLNet's was not."
                if chosen.rates
                else "One learning rate for all, none its own best."
            ],
            construct=[
                "Cost is of models as they are written. Small ones wait for Python, which a state "
                "gives more to do: compiled or replayed they would differ less. They are trained in one "
                "process, one after the other: what an earlier one leaves of the machine's own memory "
                "counts for those behind it.",
            ],
        ),
    )


def rates_table(scale: Scale) -> Table:
    every = sorted({rate for rates in scale.rates.values() for rate in rates})
    rows: list[list[Cell]] = []
    for model, rates in scale.rates.items():
        tried = rates if len(rates) > 1 else ()
        name = model if tried else f"{model} (at {rates[0]:g}, untried)"
        found = {rate: Value("valid_loss", arm_at(rate, model), form="{:.4f}") for rate in tried}
        rows.append([name, *(found.get(rate, "") for rate in every)])
    return Table(
        f"Learning rates, tried on {next(iter(scale.texts))}",
        ("model", *(f"{rate:g}" for rate in every)),
        rows,
        "Validation loss at the end, nats a byte, one seed. The rate of the lowest is used for that "
        "model, however wide and whatever it carries, on every text.",
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
                ""
                if base is None
                else Value("above_at_equal_flops", f"{text}: {arm}", form="{:+.4f}"),
                ""
                if base is None
                else Value("overlap_at_equal_flops", f"{text}: {arm}", form="{:.0f}"),
                "" if base is None else Value("converged_after", f"{text}: {arm}", share=True),
                *(
                    Value(metric, f"{text}: {arm}", form="{:+.4f}") if carries(arm) else ""
                    for metric in ("state_zeroed", "state_other")
                ),
                Value("flops_counted", f"{text}: {arm}", form="{:.3g}"),
                Value("parameters", f"{text}: {arm}", form="{:,.0f}"),
            ]
            for arm, (_, _, base) in ARMS.items()
        ],
        "Above its base: nats a byte above the same architecture without a state (the last two: above "
        "GPT-2), paired; at equal FLOPs: above it when its windows overlap as far as the FLOPs of the "
        "row allow (0: no overlap does, and it is the column before). Converged after: the part of the "
        "training after which the validation loss is the one its base ends at, of the seeds in which it "
        "ever is; between validations a straight line. Without its state, and with another text's: nats "
        "a byte above the same model with its own. FLOPs are counted, and not by the papers' formula.",
    )


def carries(arm: str) -> bool:
    return ARMS[arm][1]["carry"] != "none"


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
            [
                arm,
                *(Value(metric, f"{text}: {arm}", form="{:.4f}", share=True) for metric in metrics),
            ]
            for arm in ARMS
        ],
        "Precision, recall, F1 and AUC are means over the bytes that occur.",
    )


def cost(scale: Scale) -> Table:
    how = scale.train
    return Table(
        "Cost",
        COSTS,
        [
            [
                arm,
                Value(f"training_speed: {arm}", COST, form="{:,.0f}"),
                "" if base is None else Value(f"training_time_ratio: {arm}", COST),
                Value(f"training_memory: {arm}", COST, unit=GB),
                ""
                if base is None
                else Value(f"training_memory_above: {arm}", COST, form="{:+.2f}", unit=GB),
                Value(f"resident: {arm}", COST, unit=GB),
                ""
                if base is None
                else Value(f"resident_above: {arm}", COST, form="{:+.2f}", unit=GB),
                Value(f"reading_speed: {arm}", COST, form="{:,.0f}"),
                "" if base is None else Value(f"reading_speed_ratio: {arm}", COST),
            ]
            for arm, (_, _, base) in ARMS.items()
        ],
        "All in one run, one after the other, as they are written: neither compiled nor replayed; "
        f"steps of {how['rows']} rows x {how['windows']} windows of {scale.window} bytes.",
    )


def limits_of(limits: Mapping[str, Any]) -> str:
    """How much of a test text is read, and when its state is forgotten."""
    told = f"the first {limits['document_tokens']:,} bytes of each document are scored"
    if carry := limits.get("carry"):
        told += f", and every {carry} windows the state begins anew"
    return told


def curves(text: str, group: str, name: str, x: str, y: str) -> Figure:
    arms = FAMILIES[group]
    return Figure(
        f"{y.capitalize()} over {x}: {text}, {group}",
        x,
        f"{y} (nats a byte)",
        [Series(arm, curve=(f"{text}: {arm}", name)) for arm in arms],
        later=name == "validation",
    )


def distances(text: str) -> Figure:
    """How much a state gains, the longer the text in front of it."""
    drawn = [(arm, base) for arm, (_, _, base) in ARMS.items() if base and arm.startswith(base)]
    return Figure(
        f"Loss above its base over bytes in front: {text}",
        "bytes in front",
        "mean loss above its base (nats a byte)",
        [
            Series(arm, curve=(f"{text}: {arm}", "loss by distance"), above=f"{text}: {base}")
            for arm, base in drawn
        ],
        log_x=True,
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
