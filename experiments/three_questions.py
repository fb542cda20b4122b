"""The project's three questions, on GPT-2 and XLNet: does recurrence help, against what, at what cost?

    holdover run experiments/three_questions.py --scale small --together 8

GPT-2 and XLNet with random weights (there are no pretrained ones for bytes), each plain and with window
recurrence; XLNet also with its own memory; Transformer-XL and the Block-Recurrent Transformer. All are
trained on the same bytes in the same order, on enwik8 and on books.

Cost is measured separately, by runs of all models in sequence with nothing else on the device. Two
comparisons are at equal cost: GPT-2 with as many weights as with a state, and plain models whose windows
overlap as much as the FLOPs allow. All models have one learning rate, which was not tuned. If a scale
lists several rates for a model, as smoke does, they are tried first, on the first text.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from three_questions_arms import (
    ARMS,
    COST,
    SCALES,
    arm_at,
    at,
    model_of,
    settings_of,
    to_the_end,
)
from three_questions_shown import layout

from holdover.experiments.definition import Experiment, Run
from holdover.experiments.measures import of_evaluation, paired_difference
from holdover.experiments.run_context import (
    RunContext,
    last_checkpoint,
    log_of,
    resident_memory,
    training_memory,
)
from holdover.runs.models import RUN, read_run

# Rows, and windows per row, that are read to measure cost.
READ_AT_ONCE, TIMED_WINDOWS = 16, 5


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
    made = [run for of_model in tried.values() for run in of_model]
    for seed in seeds:
        for text, (corpus, limits) in chosen.texts.items():
            for arm, (_, recurrence, base) in ARMS.items():
                plain, model = recurrence["carry"] == "none", model_of(arm)
                settings = {
                    **to_the_end(arm, chosen, corpus, chosen.rates.get(model, ())),
                    "limits": limits,
                    "overlaps": list(chosen.overlaps) if plain else [0],
                }
                after = tuple(run.name for run in tried.get(model, ()))
                after += () if base is None else (Run(f"{text}: {base}", measure, {}, seed).name,)
                made.append(Run(f"{text}: {arm}", measure, settings, seed, after))
    timed = {
        "arms": {arm: settings_of(arm, chosen) for arm in ARMS},
        "data": next(iter(chosen.texts.values()))[0],
        "steps": chosen.timed_steps,
    }
    return [*made, *(Run(COST, measure_cost, timed, seed, alone=True) for seed in seeds)]


def try_rate(work: RunContext) -> dict[str, Any]:
    rate = work.settings["train"]["learning_rate"]
    run = trained(work, rate)
    work.read(read_run(last_checkpoint(run) / RUN)["data"]["training"])
    return {"rate": rate, "valid_loss": validations(run)[-1][1]}


def chosen_rate(work: RunContext) -> float:
    """The tried rate with the best last validation, or the only one."""
    tried = [one for one in work.found.values() if "rate" in one]
    if not tried:
        return work.settings["train"]["learning_rate"]
    return min(tried, key=lambda one: one["valid_loss"])["rate"]


def trained(work: RunContext, rate: float) -> Path:
    settings, model = work.settings, work.settings["model"]
    xlnet = model["model"] == "xlnet"
    # torch 2.11 compiles widths that are not multiples of 8 wrongly, and so refuses them.
    odd = model["shape"].get("n_inner", 0) % 8
    return work.train(
        data=settings["data"],
        **model,
        **{**settings["train"], **at(rate)},
        recurrence=settings["recurrence"],
        # Not settings: the same steps, only faster. CUDA graphs of a wide XLNet would not fit on a GPU.
        faster={
            "compile": not odd,
            "replay": not xlnet or model["shape"]["d_model"] < 512,
        },
        made=[other / "train" for other in work.others.values()],
    )


def measure(work: RunContext) -> dict[str, Any]:
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
    """The part of the training after which the validation loss reaches the final loss of the base.

    Linear between two validations; empty if it never does.
    """
    for (begin, before), (end, after) in pairwise(ours):
        if after <= base:
            part = (before - base) / (before - after) if before > base else 0.0
            return {"converged_after": (begin + part * (end - begin)) / ours[-1][0]}
    return {}


def at_equal_flops(ours: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Compare with the plain model at the largest overlap that costs no more FLOPs per token."""
    reached = [("loss", base["flops_counted"], 0.0)]
    reached += [
        (f"loss@{overlap}", flops, float(overlap))
        for name, flops in base.items()
        if (overlap := name.partition("flops_counted@")[2])
    ]
    within = [one for one in reached if one[1] <= ours["flops_counted"]] or reached[:1]
    metric, _, overlap = max(within, key=lambda one: one[2])
    difference = paired_difference(ours["loss"], base[metric])
    return {"above_at_equal_flops": difference, "overlap_at_equal_flops": overlap}


def measure_cost(work: RunContext) -> dict[str, Any]:
    """Train every arm for some steps without compilation and evaluate it, in sequence."""
    measures: dict[str, Any] = {}
    for number, (arm, settings) in enumerate(work.settings["arms"].items()):
        run = work.train(
            f"train-{number}",
            data=work.settings["data"],
            **settings["model"],
            **{**settings["train"], "max_steps": work.settings["steps"], "validation_tokens": 1000},
            recurrence=settings["recurrence"],
        )
        # The same number of rows for all; for a recurrent model, texts of a few windows each.
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
        assert record["rows"][0]["rows_side_by_side"] == rows, (
            "all arms read the same number of rows in parallel"
        )
        scores = of_evaluation(record)
        measures |= {
            f"training_speed: {arm}": speed_of(run),
            f"training_memory: {arm}": training_memory(run),
            f"resident: {arm}": resident_memory(run),
            f"reading_speed: {arm}": scores["tokens_per_second"],
            f"reading_memory: {arm}": scores["reading_memory"],
        }
        if base := ARMS[arm][2]:
            measures |= against(measures, arm, base)
    return measures


def speed_of(run: Path) -> float:
    """Speed over the later half of the steps.

    The first steps choose kernels, and the last one is logged as soon as it begins.
    """
    *steps, _ = [line for line in log_of(run) if "loss" in line]
    first, last = steps[(len(steps) - 1) // 2], steps[-1]
    return (last["tokens"] - first["tokens"]) / (last["seconds"] - first["seconds"])


def against(measures: dict[str, Any], arm: str, base: str) -> dict[str, float]:
    """The cost of recurrence as in the plan: ratios to the model without it."""

    def both(name: str) -> tuple[float, float]:
        return measures[f"{name}: {arm}"], measures[f"{name}: {base}"]

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


EXPERIMENT = Experiment(
    title="Three questions: long range, quality, cost",
    question="Does recurrence improve GPT-2 and XLNet on long texts, how does it compare with "
    "other "
    "memories, and what does it cost?",
    source="the research plan's three questions",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2), "real": (0,)},
    place=6,
)
