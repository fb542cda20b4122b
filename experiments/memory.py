"""How far back do states reach? Facts over many windows, also beyond the training range, and votes.

    holdover run experiments/memory.py --scale small

Small models with random weights learn two synthetic corpora whose answers need earlier windows:
once-8 (a fact that is asked for once, one to eight windows later, and not repeated in between) and
majority (which letter was more frequent in one to eight windows). They are tested at distances up to
1,000 windows, to see whether the state drifts.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdover.evaluation.scoring import score
from holdover.experiments.definition import (
    Answer,
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
)
from holdover.experiments.measures import ratio
from holdover.experiments.run_context import RunContext, last_checkpoint
from holdover.runs.models import RUN, open_model, read_run
from holdover.runs.settings import build
from holdover.text.options import TextOptions
from holdover.text.splits import read_text
from holdover.tokenization.encoders import encoder_of

# Probabilities of right answers, distances in windows, numbers of documents.
Answers = tuple[np.ndarray, np.ndarray, np.ndarray]

WINDOW = 16
TRAINED = 8
# Distances that are tested in addition to those of training, and distances in tables.
BEYOND = {"smoke": (9, 10), "small": (16, 32, 64, 125, 250, 500, 1000)}
SHOWN = {"smoke": (1, TRAINED, 9, 10), "small": (1, 2, 4, TRAINED, 16, 64, 1000)}
# Texts in parallel: the windows of a text are read one by one, and the models are small.
ROWS = 256
CHANCE = {"recall": 1 / 16, "majority": 1 / 2}
GPT2 = {
    "model": "gpt2",
    "shape": {
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "n_positions": 32,
        "initializer_range": 0.12,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    },
}
XL = {
    "model": "holdover_xl",
    "shape": {
        "n_layer": 2,
        "d_model": 64,
        "n_head": 4,
        "d_head": 16,
        "d_inner": 256,
        "dropout": 0.0,
        "initializer_range": 0.12,
    },
}
BRT = {
    "model": "holdover_xl",
    "shape": {**XL["shape"], "recurrent_layers": [2], "state_vectors": 8},
}
XLNET = {
    "model": "xlnet",
    "shape": {
        "n_layer": 2,
        "d_model": 64,
        "n_head": 4,
        "d_inner": 256,
        "dropout": 0.0,
        "initializer_range": 0.12,
    },
}
# The model of each arm, and its recurrence.
ARMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (GPT2, {"carry": "none"}),
    "mean of a window (published)": (GPT2, {"carry": "pooled"}),
    "last position": (GPT2, {"carry": "pooled", "pooling": "last"}),
    "memory tokens": (GPT2, {"carry": "tokens", "map_hidden": [], "slots": 2}),
    "XL memory of one window": (XL, {"carry": "memory"}),
    "XL memory of eight": (XL, {"carry": "memory", "memory_length": TRAINED * WINDOW}),
    "block-recurrent state": (BRT, {"carry": "blocks"}),
    "mean of a window, XLNet": (XLNET, {"carry": "pooled"}),
    "XLNet's memory of one window": (XLNET, {"carry": "memory"}),
    "XLNet's memory of eight": (XLNET, {"carry": "memory", "memory_length": TRAINED * WINDOW}),
}
TRAIN = {
    "tokenizer": "bytes",
    "from_scratch": True,
    "rows": 32,
    "windows": TRAINED + 1,
    "learning_rate": 3e-3,
    "added_learning_rate": 3e-3,
    "schedule": "linear",
    "warm_up": 50,
    "epochs": 1000,
    "patience": None,
    "keep": 1,
    "validate_every": 10_000_000,
    "validation_tokens": 200,
}
STEPS = {"smoke": 2, "small": 1500}
IN_SMOKE = ("plain", "last position")
# Two steps learn nothing: at this scale reading the corpora takes the time.
SMALLER = {"smoke": {"n_embd": 16, "n_head": 2}, "small": {}}
# States without a limit by construction, and all states that reach the longest training distance.
ENDLESS = ("last position", "memory tokens", "block-recurrent state")
REACHING = (*ENDLESS, "XL memory of eight", "XLNet's memory of eight")
MEANS = ("mean of a window (published)", "mean of a window, XLNet")
# Probabilities from which a fact counts as recalled, and a vote as counted over more than the last three
# windows, from which an ideal reader predicts it with 0.90 (tests/experiments/test_experiments.py).
RECALLED, COUNTED = 0.9, 0.93
TASKS = {"recall": f"once-{TRAINED}", "majority": "majority"}


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    return [
        Run(
            f"{task}: {arm}",
            measure,
            {
                "scale": scale,
                "task": task,
                "model": sized(ARMS[arm][0], scale),
                "recurrence": {"window": WINDOW, **ARMS[arm][1]},
                "train": {**TRAIN, "max_steps": STEPS[scale]},
            },
            seed,
        )
        for seed in seeds
        for task in TASKS
        for arm in arms(scale)
    ]


def sized(model: dict[str, Any], scale: str) -> dict[str, Any]:
    return {**model, "shape": {**model["shape"], **SMALLER[scale]}}


def arms(scale: str) -> Sequence[str]:
    return IN_SMOKE if scale == "smoke" else tuple(ARMS)


def measure(work: RunContext) -> dict[str, Any]:
    settings = work.settings
    run = work.train(
        data=TASKS[settings["task"]],
        **settings["model"],
        **settings["train"],
        recurrence=settings["recurrence"],
        # Not a setting: the same steps, only faster.
        faster={"replay": True},
    )
    model = last_checkpoint(run)
    work.read(read_run(model / RUN)["data"]["training"])
    if settings["task"] == "majority":
        right, windows, document = answers(work, model, "majority")
        curve = [[int(n), round(float(right[windows == n].mean()), 4)] for n in np.unique(windows)]
        return {"right": overall(right, document), "curves": {"by windows": curve}}
    right, distance, document = (
        np.concatenate(parts) for parts in zip(*tested(work, model), strict=True)
    )
    places = [int(place) for place in np.unique(distance)]
    by_distance = {at: overall(right[distance == at], document[distance == at]) for at in places}
    measures = {f"right@{at}": value for at, value in by_distance.items()}
    curve = [[at, round(value["value"], 4)] for at, value in by_distance.items()]
    return {**measures, "curves": {"by distance": curve}}


def tested(work: RunContext, model: Path) -> Iterator[Answers]:
    beyond = BEYOND[work.settings["scale"]]
    for corpus in (TASKS["recall"], *(f"after-{distance}" for distance in beyond)):
        yield answers(work, model, corpus)


@torch.no_grad()
def answers(work: RunContext, model: Path, corpus: str) -> Answers:
    """For every answer its probability, the distance of its fact in windows (for a vote: the number of
    windows it has) and its document."""
    device = work.device
    opened = open_model(str(model)).to(device).eval()
    options = {k: v for k, v in work.common.items() if k != "device"}
    text = build(TextOptions, {**options, "data": corpus})
    tokens = read_text(text, encoder_of(str(model)), "test", window=WINDOW, console=work.console)
    work.read(tokens.about)
    scores = score(opened, tokens, rows=ROWS, device=device)
    document = scores.document[scores.scored]
    right = np.exp(-scores.nll[scores.scored])
    place = np.flatnonzero(scores.scored) - tokens.bounds[document]
    return right, place // WINDOW + (corpus == "majority"), document


def overall(right: np.ndarray, document: np.ndarray) -> dict[str, Any]:
    """The mean probability of the right answer, with its interval over texts."""
    units = np.unique(document, return_inverse=True)[1]
    sums, counts = np.bincount(units, right), np.bincount(units)
    return ratio(sums, counts, f"{len(sums)} texts")


def layout(scale: str) -> Layout:
    shown, distances = arms(scale), SHOWN[scale]
    layers, width = XL["shape"]["n_layer"], XL["shape"]["d_model"]
    return Layout(
        done=f"Models of {layers} layers x {width} with random weights, trained for "
        f"{STEPS[scale]:,} "
        f"steps of {TRAIN['rows']} texts of {TRAINED + 1} windows of {WINDOW} tokens, and tested "
        "on new texts.",
        answers=[answer(scale)],
        claims=[claim for claim in claims(scale) if claim.expects],
        tables=[
            Table(
                "Probability of the right answer",
                (
                    "state",
                    *(f"after {at} window{'s'[: at > 1]}" for at in distances),
                    "majority",
                ),
                [
                    [
                        arm,
                        *(right("recall", arm, f"right@{at}") for at in distances),
                        right("majority", arm, "right"),
                    ]
                    for arm in shown
                ],
                f"Chance is {CHANCE['recall']:.4f} for a fact, {CHANCE['majority']:.1f} for a "
                "majority. "
                f"Distances up to {TRAINED} were trained, near ones more often. Majorities are "
                "over one to eight windows, all of which were trained: the plain model shows what "
                "the last window "
                f"alone predicts, and {COUNTED} is more than the last three predict.",
            )
        ],
        figures=[
            Figure(
                "Recall by distance",
                "windows since the fact",
                "probability of the fact",
                [Series(arm, curve=(f"recall: {arm}", "by distance")) for arm in shown],
                log_x=True,
            ),
            Figure(
                "Majority by length",
                "windows of the text",
                "probability of the majority",
                [Series(arm, curve=(f"majority: {arm}", "by windows")) for arm in shown],
            ),
        ],
        threats=Threats(
            external=[
                "Random weights, 16 tokens per window, and tasks that need nothing but a memory."
            ],
            internal=["All arms have the same learning rate and steps; none was tuned."],
        ),
    )


def answer(scale: str) -> Answer:
    """The published state, and the states that remember longest."""
    farthest = SHOWN[scale][-1]
    named = [arm for arm in (MEANS[0], *ENDLESS[:2]) if arm in arms(scale)]
    return Answer(
        f"Recall of a fact after one window, and after {farthest} (chance {CHANCE['recall']:.3f}): "
        f"{'; '.join(f'{arm} {{}}, {{}}' for arm in named)}.",
        [right("recall", arm, f"right@{at}") for arm in named for at in (1, farthest)],
    )


def claims(scale: str) -> list[Claim]:
    shown, (*_, far, farthest) = arms(scale), SHOWN[scale]
    return [
        Claim(
            "A model without a state does not exceed chance over windows.",
            "a check of the task",
            [Expectation(right("recall", "plain", "right@1"), "below", CHANCE["recall"] + 0.02)],
            ours=True,
        ),
        Claim(
            "The published state, the mean of a window, holds a fact for one window and for eight.",
            "section 5.3, as a task",
            recalled(MEANS, shown, (1, TRAINED)),
        ),
        Claim(
            "Other states that reach as far hold a fact for one window and for eight.",
            "our question",
            recalled(REACHING, shown, (1, TRAINED)),
            ours=True,
        ),
        Claim(
            "States without a limit hold a fact beyond all training distances: they do not drift.",
            "our question",
            recalled(ENDLESS, shown, (far, farthest)),
            ours=True,
        ),
        Claim(
            "Texts of one to eight windows are classified by their whole content.",
            "our question: variable-length classification",
            [
                Expectation(right("majority", arm, "right"), "above", COUNTED, arm)
                for arm in shown[1:]
            ],
            ours=True,
        ),
    ]


def recalled(
    states: Sequence[str], shown: Sequence[str], distances: Sequence[int]
) -> list[Expectation]:
    return [
        Expectation(
            right("recall", arm, f"right@{at}"),
            "above",
            RECALLED,
            f"{arm}, {at} window{'s'[: at > 1]}",
        )
        for arm in states
        if arm in shown
        for at in distances
    ]


def right(task: str, arm: str, metric: str) -> Value:
    return Value(metric, f"{task}: {arm}", form="{:.3f}", share=True)


EXPERIMENT = Experiment(
    title="How far back states reach",
    question="Does a state hold a fact for as long as it is needed, and longer than in training? "
    "And does "
    "it classify texts of any number of windows?",
    source="the project's questions on long-range dependencies, as synthetic tasks",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2)},
    place=7,
)
