"""Table 3 of the method: questions over contexts longer than a window, plain against recurrent.

    holdover run experiments/hotpotqa.py --scale small

An encoder reads the ten paragraphs of a question window by window, with the question at the beginning of
each window.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import toy_reader
from encoders import MINILM, MPNET, folder_of

from holdover.experiments.definition import (
    Answer,
    Claim,
    Expectation,
    Experiment,
    Layout,
    Published,
    Run,
    Table,
    Threats,
    Value,
)
from holdover.experiments.measures import ratio
from holdover.experiments.run_context import RunContext, last_checkpoint
from holdover.questions.options import QAOptions
from holdover.runs.models import RUN, read_run

PLAIN, STATE, TOKENS = "plain", "recurrent", "memory tokens"
CARRIES: dict[str, dict[str, Any]] = {
    PLAIN: {"carry": "none"},
    STATE: {"carry": "pooled"},
    TOKENS: {"carry": "tokens", "slots": 8, "map_hidden": []},
}
COLUMNS = (
    "reader",
    "F1",
    "EM",
    "F1 above plain (points)",
    "EM above plain (points)",
    "state removed",
    "another's state",
    "paper's F1",
    "paper's EM",
)
# F1 and EM of RoBERTa-base on the development set.
PUBLISHED = {PLAIN: ("48.17", "43.55"), STATE: ("49.12", "44.55")}


@dataclass(frozen=True)
class Scale:
    encoders: tuple[str, ...]
    data: str
    window: int
    learnt: int  # questions for training
    asked: int  # questions for testing
    train: dict[str, Any] = field(default_factory=dict)
    validation: str | None = None


# Questions for training and for testing.
OURS, PAPERS = (1_192, 300), (30_000, 7_405)
FEW = {"rows": 8, "epochs": 8, "learning_rate": 5e-5, "added_learning_rate": 2e-4, "warm_up": 50}
# The last checkpoint is scored, which comes at the same step in all arms.
FEW |= {"patience": None, "keep": 1, "bf16": True}
SCALES = {
    "smoke": Scale(("a tiny BERT",), "toy", 20, 24, 24, {"rows": 4, "epochs": 1, "max_steps": 2}),
    "small": Scale((MINILM,), "hotpotqa", 512, *OURS, FEW),
    # The same with an encoder five times as large.
    "real": Scale((MPNET,), "hotpotqa", 512, *OURS, FEW),
    "paper": Scale(
        ("roberta-base",),
        "hotpot_train_v1.1.json",
        512,
        *PAPERS,
        {"questions": PAPERS[0], "rows": 8, "patience": None},
        "hotpot_dev_distractor_v1.json",
    ),
}


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    chosen = SCALES[scale]
    return [
        Run(
            named(encoder, arm),
            measure,
            {
                "encoder": encoder,
                "data": chosen.data,
                "validation": chosen.validation,
                "recurrence": {"window": chosen.window, **CARRIES[arm]},
                "train": chosen.train,
            },
            seed,
        )
        for seed in seeds
        for encoder in chosen.encoders
        for arm in CARRIES
    ]


def named(encoder: str, arm: str) -> str:
    return f"{encoder}, {arm}"


def measure(work: RunContext) -> dict[str, Any]:
    settings = work.settings
    if settings["data"] == "toy":
        given = toy_reader.make(work.folder / "toy", 24, work.seed)
        asked: dict[str, Any] = {"data": given["data"]}
    else:
        encoder = folder_of(settings["encoder"], work.common.get("cache_dir"))
        given = {"model": encoder, "data": settings["data"]}
        validation = settings["validation"]
        asked = {"data": settings["data"] if validation is None else validation}
        if validation is not None:
            given["validation"] = validation
    run = work.train_reader(**given, **settings["train"], recurrence=settings["recurrence"])
    end = last_checkpoint(run)
    work.read(read_run(end / RUN)["data"]["training"])
    record = work.evaluate_reader(end, **asked)
    (row,) = record["rows"]
    found: dict[str, Any] = {
        name: ratio(values, [1] * len(values), f"{len(values)} questions")
        for name, values in row["per_question"].items()
        if name != "id"
    }
    found |= {
        "parameters": row["parameters"],
        "questions_per_second": row["questions_per_second"],
        "reading_memory": row["peak_memory"]["bytes"],
        "windows": row["windows"],
    }
    state = row.get("state") or {}
    for way in ("zeroed", "other"):
        # How much the loss rises without the own state, in nats per question.
        if part := state.get(way):
            found[f"state_{way}"] = {
                **part["nll"]["above_own"],
                "over": f"{state['questions']} questions",
            }
    return found


def layout(scale: str) -> Layout:
    chosen, encoders = SCALES[scale], SCALES[scale].encoders
    return Layout(
        done=f"{' and '.join(encoders)} with windows of {chosen.window} tokens, each of which "
        "begins with "
        f"the question, trained on {chosen.learnt:,} questions for "
        f"{chosen.train.get('epochs', QAOptions.epochs)} epochs and tested on {chosen.asked:,}.",
        answers=[
            Answer(
                f"HotpotQA with {encoder}, F1: {{}} without a state; the published state changes "
                "it by {}, memory tokens by {}.",
                [
                    Value("f1", named(encoder, PLAIN), form="{:.1%}", share=True),
                    above(encoder, STATE, "f1"),
                    above(encoder, TOKENS, "f1"),
                ],
            )
            for encoder in encoders
        ],
        claims=[
            Claim(
                "A carried state raises F1 and exact match.",
                "Table 3: 48.17 to 49.12, 43.55 to 44.55",
                [
                    Expectation(
                        above(encoder, STATE, metric), "above", said=f"{encoder}, {metric.upper()}"
                    )
                    for encoder in encoders
                    for metric in ("f1", "em")
                ],
            )
        ],
        tables=[
            Table(
                f"HotpotQA, distractor setting, answers only: {encoder}",
                COLUMNS,
                [
                    [
                        arm,
                        Value("f1", named(encoder, arm), form="{:.1%}", share=True),
                        Value("em", named(encoder, arm), form="{:.1%}", share=True),
                        *(
                            "" if arm == PLAIN else above(encoder, arm, metric)
                            for metric in ("f1", "em")
                        ),
                        *(
                            "" if arm == PLAIN else Value(way, named(encoder, arm), form="{:+.4f}")
                            for way in ("state_zeroed", "state_other")
                        ),
                        *map(Published, PUBLISHED.get(arm, ("", ""))),
                    ]
                    for arm in CARRIES
                ],
                "The paper's numbers are per cent, too. State removed, another's state: how much "
                "the loss of the same reader rises, in nats per question.",
            )
            for encoder in encoders
        ],
        threats=Threats(
            internal=["One learning rate for all arms, which was not tuned."],
            external=[
                f"{OURS[0]:,} questions for training and {OURS[1]} for testing; the paper has "
                f"{PAPERS[0]:,} and {PAPERS[1]:,}. Sentence encoders instead of RoBERTa."
            ]
            if scale in ("small", "real")
            else [],
            construct=[
                "Memory tokens take positions of the window, which then holds less of the context."
            ],
            conclusion=[
                f"{OURS[1]} questions and a few seeds cannot decide a difference of one F1 point: "
                "see the width of the intervals."
            ]
            if scale in ("small", "real")
            else [],
        ),
    )


def above(encoder: str, arm: str, metric: str) -> Value:
    return Value(metric, named(encoder, arm), named(encoder, PLAIN), "{:+.1%}")


EXPERIMENT = Experiment(
    title="Questions over long contexts",
    question="When a context is longer than a window, does a carried state help to answer "
    "questions "
    "about it?",
    source="Yoshida, Ettinger, Gimpel: Adding Recurrence to Pretrained Transformers, Table 3",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2), "real": (0, 1, 2), "paper": (0,)},
    place=4,
)
