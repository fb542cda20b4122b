"""The project's three questions, on GPT-2 and XLNet: does recurrence help, against what, at what cost?

    holdover run experiments/three_questions.py --scale small --together 8

GPT-2 and XLNet with random weights (none can be had pretrained here for bytes), each plain and with
window recurrence, XLNet also with its own memory, and Transformer-XL's and the block-recurrent one's
beside them: the same bytes in the same order, on enwik8 and on books. What they cost is measured apart,
by runs of all of them one after the other, with nothing beside; what a plain model reaches at the same
cost, by GPT-2 with as many weights as with a state, and by plain models whose windows overlap as much as
the FLOPs allow. All learn at one rate, which was tried for none; only where a scale lists several for a
model, as smoke does, are they tried first, on the first text.
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

# What is read where costs are measured: rows, and windows of each.
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
    found = [run for of_model in tried.values() for run in of_model]
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
                found.append(Run(f"{text}: {arm}", measure, settings, seed, after))
    timed = {
        "arms": {arm: settings_of(arm, chosen) for arm in ARMS},
        "data": next(iter(chosen.texts.values()))[0],
        "steps": chosen.timed_steps,
    }
    return [*found, *(Run(COST, measure_cost, timed, seed, alone=True) for seed in seeds)]


def try_rate(work: RunContext) -> dict[str, Any]:
    rate = work.settings["train"]["learning_rate"]
    run = trained(work, rate)
    work.read(read_run(last_checkpoint(run) / RUN)["data"]["training"])
    return {"rate": rate, "valid_loss": validations(run)[-1][1]}


def chosen_rate(work: RunContext) -> float:
    """The one whose last validation was best where it was tried, or the only one."""
    tried = [one for one in work.found.values() if "rate" in one]
    if not tried:
        return work.settings["train"]["learning_rate"]
    return min(tried, key=lambda one: one["valid_loss"])["rate"]


def trained(work: RunContext, rate: float) -> Path:
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


def measure_cost(work: RunContext) -> dict[str, Any]:
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


EXPERIMENT = Experiment(
    title="Three questions: long range, quality, cost",
    question="Does recurrence improve what GPT-2 and XLNet do with long texts, how does it compare with "
    "other memories, and what does it cost?",
    source="the research plan's three questions",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2), "real": (0,)},
    place=6,
)
