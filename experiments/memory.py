"""How far back do states reach? Facts across windows, also at distances never trained, and votes.

    holdover run experiments/memory.py --scale small

Small models with random weights learn two synthetic corpora whose answers need the windows before:
once-8 (a fact, asked for once, one to eight windows on, and not said again in between) and majority
(which letter was more frequent in one to eight windows). They are tested at distances up to 1,000
windows: does the state drift?
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
# Distances that are tested beside those of training, and in tables.
BEYOND = {"smoke": (9, 10), "small": (16, 32, 64, 125, 250, 500, 1000)}
SHOWN = {"smoke": (1, TRAINED, 9, 10), "small": (1, 2, 4, TRAINED, 16, 64, 1000)}
# Texts side by side: their windows wait for one another, and the models are small.
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
# What is carried, and by which model.
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
# Nothing is learnt in two steps: what takes time there is reading the corpora.
SMALLER = {"smoke": {"n_embd": 16, "n_head": 2}, "small": {}}
# Whose reach ends nowhere by construction, and those that reach as far as was trained.
ENDLESS = ("last position", "memory tokens", "block-recurrent state")
REACHING = (*ENDLESS, "XL memory of eight", "XLNet's memory of eight")
MEANS = ("mean of a window (published)", "mean of a window, XLNet")
# A fact is recalled; a vote is counted over more windows than the last three, which would tell it to an
# ideal reader with a probability of 0.90 (tests/test_experiments.py).
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
        # The same steps, only faster: no setting.
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
    found = {at: overall(right[distance == at], document[distance == at]) for at in places}
    measures = {f"right@{at}": value for at, value in found.items()}
    curve = [[at, round(value["value"], 4)] for at, value in found.items()]
    return {**measures, "curves": {"by distance": curve}}


def tested(work: RunContext, model: Path) -> Iterator[Answers]:
    beyond = BEYOND[work.settings["scale"]]
    for corpus in (TASKS["recall"], *(f"after-{distance}" for distance in beyond)):
        yield answers(work, model, corpus)


@torch.no_grad()
def answers(work: RunContext, model: Path, corpus: str) -> Answers:
    """Of every answer its probability, how many windows back its fact lies (of a vote: how many windows
    it has) and its document."""
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
        done=f"Models of {layers} layers x {width} with random weights, trained for {STEPS[scale]:,} "
        f"steps of {TRAIN['rows']} texts of {TRAINED + 1} windows of {WINDOW} tokens, and asked about "
        "texts they have not seen.",
        answers=[answer(scale)],
        claims=[claim for claim in claims(scale) if claim.expects],
        tables=[
            Table(
                "Probability of the right answer",
                (
                    "what is carried",
                    *(f"{at} window{'s'[: at > 1]} on" for at in distances),
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
                f"Chance is {CHANCE['recall']:.4f} for a fact, {CHANCE['majority']:.1f} for a majority. "
                f"Distances up to {TRAINED} were trained, near ones more often. A majority is of texts "
                "of one to eight windows, all of which were trained: plain shows what the last window "
                f"alone tells of it, and {COUNTED} is more than the last three do.",
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
                "Random weights, 16 tokens a window: tasks made so that a memory is all they need."
            ],
            internal=["All arms have the same learning rate and steps, none its own best."],
        ),
    )


def answer(scale: str) -> Answer:
    """Of what has the published state, and what remembers longest."""
    farthest = SHOWN[scale][-1]
    told = [arm for arm in (MEANS[0], *ENDLESS[:2]) if arm in arms(scale)]
    return Answer(
        f"A fact recalled one window on, and {farthest} on (chance {CHANCE['recall']:.3f}): "
        f"{'; '.join(f'{arm} {{}}, {{}}' for arm in told)}.",
        [right("recall", arm, f"right@{at}") for arm in told for at in (1, farthest)],
    )


def claims(scale: str) -> list[Claim]:
    shown, (*_, far, farthest) = arms(scale), SHOWN[scale]
    return [
        Claim(
            "A model without a state does no better than chance across windows.",
            "a check of the task",
            [Expectation(right("recall", "plain", "right@1"), "below", CHANCE["recall"] + 0.02)],
            ours=True,
        ),
        Claim(
            "The published state, the mean of a window, holds a fact for the next window, and for "
            "eight.",
            "section 5.3, as a task",
            recalled(MEANS, shown, (1, TRAINED)),
        ),
        Claim(
            "Other states that reach so far hold it for the next window, and for eight.",
            "our question",
            recalled(REACHING, shown, (1, TRAINED)),
            ours=True,
        ),
        Claim(
            "States that end nowhere hold it for longer than was ever trained: they do not drift.",
            "our question",
            recalled(ENDLESS, shown, (far, farthest)),
            ours=True,
        ),
        Claim(
            "Texts of one to eight windows are classified by all that they hold.",
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
    question="Does a state hold a fact for as long as it is needed, farther than it was trained, and "
    "what of texts that end after any number of windows?",
    source="the project's questions on long-range dependencies, as synthetic tasks",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2)},
    place=7,
)
