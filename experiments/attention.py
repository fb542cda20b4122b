"""Does recurrence inside attention help? Bits per character of XL, RSA-XL, BRT and RSA-BRT.

    holdover run experiments/attention.py --scale real --together 5     14 layers, 4,000 steps, an H200
    holdover run experiments/attention.py --scale small                 6 layers, parts of the text

All arms are trained on the same text in the same order for the same number of steps. A published
reproduction reports 5.07 bits for RSA-XL on enwik8, which is the entropy of its single characters, and
trained its arms for different numbers of steps.
"""

import math
import random
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lost_commits import LOST

from holdover.experiments.definition import (
    Answer,
    Cell,
    Claim,
    Expectation,
    Experiment,
    Figure,
    Layout,
    Published,
    Run,
    Series,
    Table,
    Threats,
    Value,
)
from holdover.experiments.measures import bounded, in_units, of_evaluation
from holdover.experiments.run_context import RunContext, last_checkpoint, log_of
from holdover.ops.rem import RecurrenceEncoding, lag_weights
from holdover.pages.wording import scaled
from holdover.runs.models import open_model, read_run
from holdover.text.sources import open_source
from holdover.tokenization.byte_encoder import SYMBOLS

WINDOW = 512
# 14 layers as in the RSA paper; the rest is as in the original Transformer-XL.
LARGE = {"n_layer": 14, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048}
SMALL = {"n_layer": 6, "d_model": 256, "n_head": 8, "d_head": 32, "d_inner": 1024}
TOY = {"n_layer": 3, "d_model": 16, "n_head": 4, "d_head": 4, "d_inner": 32, "state_vectors": 8}
# As in the reproduction's script; its text has 8 instead of 256.
SMALLER = {"n_layer": 7, "d_model": 256}
# The recurrent layer of a block-recurrent model, counted from the top.
FROM_TOP = 3
# RSA-XL's dilations, by text.
DILATIONS = {"text8": [6, 6, 12, 12]}
OTHER_DILATIONS = [3, 6, 9, 12]
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
    "validate_every": 10_000_000,
    "validation_tokens": 300_000,
    "log_every": 200,
}
ON_A_GPU = {"bf16": True, "compile": True}
# A block-recurrent model learns to write its state from the loss of later blocks: the 512 tokens of a
# step are two blocks. The length of the memory gives their queries as many keys on average as in the
# other arms.
BLOCKS = 2
BLOCK = WINDOW // BLOCKS
BLOCK_MEMORY = 640
# Tokens of the test text that are read with one memory: 20 such parts in parallel.
PART = 249_856
PARTS = 20
TOY_SHRINKS = 16
# The text of the scale smoke.
WORDS = "words"
ALL = ("xl", "rsa-xl", "rsa-xl-fast", "rsa-xl-small", "brt", "rsa-brt")
# The learning rate of the recurrence's own numbers, five per layer, in some arms. Adam moves a number by
# at most its rate per step, so in a few thousand steps at the common rate a gate hardly leaves the 0.5
# at which it begins.
FAST = 1e-2
FAST_ARMS = ("rsa-xl-fast", "rsa-brt")
# For an arm, the arm that differs only in its attention.
BASES = {"rsa-xl": "xl", "rsa-xl-fast": "xl", "rsa-brt": "brt"}
# Arms that are also trained on a part of the text.
SHARED = ("xl", "rsa-xl", "rsa-xl-fast")
# Bits above the base that still count as equal, and bits below single symbols that count as learnt.
AS_GOOD, LEARNT = 0.01, 0.05
LAGS = 100
# Bits per character: the RSA paper after 400,000 steps, and its reproduction after 10,000 to 40,000.
PUBLISHED = {
    "enwik8-204": {
        "xl": ("1.074", "1.26"),
        "rsa-xl": ("", "5.07"),
        "rsa-xl-small": ("", "3.93"),
        "brt": ("1.0746", "1.29"),
        "rsa-brt": ("1.0683", ""),
    },
    "text8": {
        "xl": ("", "1.28"),
        "rsa-xl": ("1.164", "4.10"),
        "rsa-xl-small": ("", "3.19"),
        "brt": ("1.1652", "1.30"),
        "rsa-brt": ("1.1625", ""),
    },
}


@dataclass(frozen=True)
class Scale:
    shape: dict[str, int]
    train: dict[str, Any]  # options of the training that differ from the common ones
    texts: dict[str, tuple[str, ...]]  # and their arms
    shares: tuple[float, ...] = (1.0,)  # of the first text, for arms that are compared on it
    shrinks: int = 1
    read: dict[str, Any] = field(default_factory=dict)  # options of the evaluation


WHOLE = {"enwik8-204": ALL, "text8": ("xl", "rsa-xl", "rsa-xl-fast")}
SCALES = {
    "smoke": Scale(
        TOY,
        {"max_steps": 4, "rows": 2, "validation_tokens": 600},
        {WORDS: ALL},
        shares=(0.3, 1.0),
        shrinks=TOY_SHRINKS,
        read={"timed_windows": 2, "draws": 200},
    ),
    "small": Scale(
        SMALL,
        {**ON_A_GPU, "max_steps": 2000},
        {"enwik8-204": ("xl", "rsa-xl", "rsa-xl-fast")},
        shares=(0.1, 0.3, 1.0),
    ),
    "real": Scale(LARGE, {**ON_A_GPU, "max_steps": 4000}, WHOLE),
    "paper": Scale(LARGE, {**ON_A_GPU, "max_steps": 400_000}, WHOLE),
}


@dataclass(frozen=True)
class Learner:
    """A model, a text, and the share of it that the model is trained on."""

    arm: str
    text: str
    share: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.arm} {self.text}{'' if self.share == 1.0 else f' share {self.share}'}"

    @property
    def base(self) -> "Learner":
        """The same without recurrence in its attention."""
        return Learner(BASES[self.arm], self.text, self.share)


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    chosen = SCALES[scale]
    made = []
    for seed in seeds:
        named: dict[str, str] = {}
        for learner in learners(scale):
            after: tuple[str, ...] = ()
            if BASES.get(learner.arm) == "xl" and len(chosen.shares) > 1:
                # The difference to its base, which runs before it, is compared between shares.
                after = (named[learner.base.name],)
            run = Run(learner.name, measure, settings_of(learner, chosen), seed, after)
            named[learner.name] = run.name
            made.append(run)
    return made


def learners(scale: str) -> list[Learner]:
    chosen = SCALES[scale]
    whole = [Learner(arm, text) for text, arms in chosen.texts.items() for arm in arms]
    text = next(iter(chosen.texts))
    less = [share for share in chosen.shares if share < 1.0]
    return whole + [Learner(arm, text, share) for share in less for arm in SHARED]


def settings_of(learner: Learner, scale: Scale) -> dict[str, Any]:
    shape: dict[str, Any] = dict(scale.shape)
    if learner.arm.endswith("-small"):
        shape |= SMALLER if scale.shrinks == 1 else {"n_layer": 2}
    if learner.arm.startswith("rsa"):
        dilations = DILATIONS.get(learner.text, OTHER_DILATIONS)
        shape |= {"attention": "rsa", "rem_dilations": dilations}
    recurrence: dict[str, Any] = {"carry": "memory", "window": WINDOW}
    chosen: dict[str, Any] = dict(COMMON)
    if learner.arm in FAST_ARMS:
        chosen["added_learning_rate"] = FAST
    if "brt" in learner.arm:
        shape["recurrent_layers"] = [shape["n_layer"] - FROM_TOP + 1]
        recurrence = {"carry": "blocks", "window": BLOCK, "memory_length": BLOCK_MEMORY}
        chosen["windows"] = BLOCKS
    for name in recurrence.keys() & {"window", "memory_length"}:
        recurrence[name] //= scale.shrinks
    chosen |= {
        "tokenizer": learner.text if learner.text in SYMBOLS else "bytes",
        "shape": shape,
        "recurrence": recurrence,
        **scale.train,
    }
    return {
        "text": learner.text,
        "share": learner.share,
        "train": chosen,
        # The text in parallel parts, each of which begins without a memory.
        "read": {
            "carry": PART // recurrence["window"],
            "rows": PARTS,
            "diagnose_state": False,
            "metrics": False,
            **scale.read,
        },
    }


def measure(work: RunContext) -> dict[str, Any]:
    """Train a model, score the test text with its last checkpoint, and read its gates."""
    settings = work.settings
    text = settings["text"]
    if text == WORDS:
        text = str(write_words(work.folder / WORDS))
    # Replay makes the same steps faster. It is not a setting, so that older records stay valid.
    data = part_of(work, text, settings["share"])
    run = work.train(data=data, faster={"replay": True}, **settings["train"])
    end = last_checkpoint(run)
    work.read(read_run(end / "holdover_run.json")["data"]["training"])
    record = work.evaluate(end, data=text, **settings["read"])
    log = log_of(run)
    measures = {**measured(record), **trained(log)}
    curves = {"validation": validation(log)}
    if settings["train"]["shape"].get("attention") == "rsa":
        curves |= learnt(end)
        gates = [gate for _, gate in curves["gate by layer"]]
        measures |= {"gate": statistics.mean(gates), "largest_gate": max(gates)}
    for base in work.found.values():
        measures["above_base"] = measures["bits"]["value"] - base["bits"]["value"]
    return {**measures, "curves": curves}


def measured(record: Mapping[str, Any]) -> dict[str, Any]:
    """Measures of an evaluation, in bits per symbol."""
    row = record["rows"][0]
    scores = of_evaluation(record)
    loss, perplexity = scores["loss"], scores["perplexity_per_token"]
    bounds = [
        None if perplexity[end] is None else math.log2(perplexity[end]) for end in ("low", "high")
    ]
    bits = bounded(in_bits(loss["value"]), bounds, loss["over"])
    if units := row.get("per_unit"):
        bits |= in_units([in_bits(nats) for nats in units["nats"]], units["tokens"])
    unigram = row["collapse"]["unigram_bits"]
    # The entropy is a constant of the text: the interval is that of the bits, mirrored.
    below = [None if bound is None else unigram - bound for bound in reversed(bounds)]
    return {
        "bits": bits,
        "unigram_bits": unigram,
        "below_unigram": bounded(unigram - bits["value"], below, loss["over"]),
        "collapsed": int(row["collapse"]["collapsed"]),
        "parameters": record["model"]["parameters"]["all"],
        "reading_tokens_per_second": scores["tokens_per_second"],
        "reading_memory": scores["reading_memory"],
    }


def in_bits(nats: float) -> float:
    return nats / math.log(2)


def trained(log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps = [line for line in log if "loss" in line]
    speeds = [line["tokens_per_second"] for line in steps if line["tokens_per_second"]]
    measures = {"steps": steps[-1]["step"], "tokens": steps[-1]["tokens"]}
    return measures | ({"tokens_per_second": statistics.median(speeds)} if speeds else {})


def validation(log: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    return [[line["step"], in_bits(line["valid_loss"])] for line in log if "valid_loss" in line]


def write_words(folder: Path) -> Path:
    """A text of a few kilobytes with splits, the same on every machine."""
    drawn = random.Random(0)
    known = ["a", "calm", "sea", "ship", "went", "out", "where", "no", "land", "is", "seen"]
    for split, words in (("train", 1500), ("valid", 200), ("test", 400)):
        path = folder / split / "text.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(drawn.choice(known) for _ in range(words)))
    return folder


def part_of(work: RunContext, text: str, share: float) -> str:
    """A text, or a folder with the beginning of its training split and its validation split."""
    if share == 1.0:
        return text
    folder = work.folder / f"{Path(text).name}-{share}"
    for split in ("train", "valid"):
        (document,) = open_source(text, split, data_dir=work.common.get("data_dir")).documents()
        content = b"".join(document.read())
        path = folder / split / "text.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content[: int(len(content) * share)] if split == "train" else content)
    return str(folder)


@torch.no_grad()
def learnt(checkpoint: Path) -> dict[str, list[list[float]]]:
    """How much recurrence each layer uses, and at which lags all of them use it."""
    gates, weights = [], torch.zeros(LAGS)
    lags = torch.arange(1, LAGS + 1)
    for name, module in open_model(str(checkpoint)).named_modules():
        if isinstance(module, RecurrenceEncoding):
            (number,) = re.findall(r"\d+", name)
            gate = module.gate().item()
            gates.append([int(number) + 1, gate])
            weights += gate * lag_weights(module(), lags[None]).abs().sum((0, 1))
    by_lag = zip(lags.tolist(), weights.tolist(), strict=True)
    return {"gate by layer": gates, "recurrence by lag": [list(point) for point in by_lag]}


def layout(scale: str) -> Layout:
    chosen = SCALES[scale]
    shared = len(chosen.shares) > 1
    steps, rows = chosen.train["max_steps"], chosen.train.get("rows", COMMON["rows"])
    shape, window = chosen.shape, WINDOW // chosen.shrinks
    return Layout(
        done=f"Models of {shape['n_layer']} layers x {shape['d_model']} with random weights, "
        "trained on "
        f"{' and on '.join(chosen.texts)}: {steps:,} steps of {rows} rows x {window} characters, "
        f"{scaled(steps * rows * window)} in total, the same for every arm.",
        answers=[answer(scale)],
        claims=[claim for claim in claims(scale) if claim.expects],
        tables=[
            *(text_table(text, arms) for text, arms in chosen.texts.items()),
            *([share_table(scale)] if shared else []),
        ],
        figures=[
            *(curve_figure(scale, *drawn) for drawn in CURVES),
            *([share_figure(scale)] if shared else []),
        ],
        threats=threats(scale),
    )


def answer(scale: str) -> Answer:
    learner = next(one for one in learners(scale) if one.share == 1.0 and one.arm == "rsa-xl")
    return Answer(
        "Recurrence inside Transformer-XL's attention (RSA), bits per character on "
        f"{learner.text}: "
        "{} without; it changes them by {}.",
        [Value("bits", learner.base.name, form="{:.3f}"), above_base(learner)],
    )


def claims(scale: str) -> list[Claim]:
    every = learners(scale)
    (smallest, *_), whole = SCALES[scale].shares, [one for one in every if one.share == 1.0]
    attention = [one for one in whole if BASES.get(one.arm) == "xl"]
    blocks = [one for one in whole if one.arm == "rsa-brt"]
    less = [one for one in every if one.arm in SHARED[1:] and one.share == smallest < 1.0]
    return [
        Claim(
            "With recurrence in its attention, Transformer-XL is better.",
            "Huang et al. 2023: at every depth",
            [Expectation(above_base(one), "below", said=one.name) for one in attention],
        ),
        Claim(
            f"With recurrence in its attention, Transformer-XL is at most {AS_GOOD} bits worse.",
            "a check: a reproduction of Huang et al. has 5.07 against 1.26",
            [Expectation(above_base(one), "below", AS_GOOD, one.name) for one in attention],
            ours=True,
        ),
        Claim(
            "With recurrence in its attention, the Block-Recurrent Transformer is better.",
            "Huang et al. 2023: 1.0683 against 1.0746 on enwik8",
            [Expectation(above_base(one), "below", said=one.name) for one in blocks],
        ),
        Claim(
            f"No model has collapsed: all are at least {LEARNT} bits below the entropy of symbols.",
            "a check: a reproduction of Huang et al. has 5.07 bits, which is that entropy",
            [
                Expectation(
                    Value("below_unigram", one.name, form="{:+.3f}"), "above", LEARNT, one.name
                )
                for one in every
            ],
            ours=True,
        ),
        Claim(
            "With little training text, recurrence in attention lowers the bits.",
            "Huang et al. 2023, Figure 1: sample efficiency",
            [Expectation(above_base(one), "below", said=one.name) for one in less],
        ),
        Claim(
            "With little training text, recurrence in attention lowers the bits more than with the "
            "whole text.",
            "Huang et al. 2023, Figure 1: sample efficiency",
            [
                Expectation(
                    Value("above_base", one.name, Learner(one.arm, one.text).name, "{:+.4f}"),
                    "below",
                    said=one.name,
                )
                for one in less
            ],
        ),
    ]


def above_base(learner: Learner) -> Value:
    return Value("bits", learner.name, learner.base.name, "{:+.4f}")


def text_table(text: str, arms: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for learner in (Learner(arm, text) for arm in arms):
        paper, reproduction = PUBLISHED.get(text, {}).get(learner.arm, ("", ""))
        rows.append(
            [
                learner.arm,
                Value("bits", learner.name, form="{:.4f}"),
                above_base(learner) if learner.arm in BASES else "",
                Value("below_unigram", learner.name, form="{:+.3f}"),
                Value("parameters", learner.name, form="{:,.0f}"),
                Value("steps", learner.name, form="{:,.0f}"),
                Value("gate", learner.name, form="{:.3f}", share=True)
                if "rsa" in learner.arm
                else "",
                Published(paper),
                Published(reproduction),
            ]
        )
    return Table(
        f"Bits per character on {text}",
        [
            "model",
            "bits",
            "above its base",
            "below single symbols",
            "parameters",
            "steps",
            "mean gate",
            "paper",
            "reproduction",
        ],
        rows,
        "Above its base: minus the same model without recurrence in its attention, paired. The "
        "paper trained for 400,000 steps, its reproduction for 10,000 to 40,000. In rsa-xl-fast "
        "and rsa-brt "
        f"the recurrence's own numbers learn at a rate of {FAST}. Below single symbols: bits below "
        "their entropy, which a model without any context reaches. Mean gate: the share of the "
        "recurrence in attention, over layers and heads.",
    )


def share_table(scale: str) -> Table:
    chosen = SCALES[scale]
    text = next(iter(chosen.texts))
    rows: list[list[Cell]] = []
    for share in chosen.shares:
        arms = [Learner(arm, text, share) for arm in SHARED]
        bits = (Value("bits", one.name, form="{:.4f}") for one in arms)
        rows.append([f"{share:.0%}", *bits, *map(above_base, arms[1:])])
    return Table(
        f"Bits per character after training on a part of {text}",
        ["part of the training text", *SHARED, *(f"{arm} above xl" for arm in SHARED[1:])],
        rows,
        "The part is the beginning. The number of steps is the same, so less text is read more "
        "often.",
    )


def share_figure(scale: str) -> Figure:
    chosen = SCALES[scale]
    text = next(iter(chosen.texts))
    series = [
        Series(
            arm,
            [
                (100 * share, Value("bits", Learner(arm, text, share).name, form="{:.4f}"))
                for share in chosen.shares
            ],
        )
        for arm in SHARED
    ]
    return Figure(
        "Sample efficiency", "Part of the training text (%)", "Bits per character", series
    )


# Title, axes, name of the curve, and a word in the names of the arms to draw.
CURVES = (
    ("Training", "Step", "Bits per character, validation", "validation", ""),
    ("How much recurrence", "Layer", "Gate: share of the recurrence", "gate by layer", "rsa"),
    ("How far back", "Lag", "Gate x |weight|, all heads and layers", "recurrence by lag", "rsa"),
)


def curve_figure(scale: str, title: str, x: str, y: str, name: str, word: str) -> Figure:
    drawn = [one for one in learners(scale) if one.share == 1.0 and word in one.arm]
    series = [Series(one.name, curve=(one.name, name)) for one in drawn]
    return Figure(title, x, y, series, later=name == "validation")


def threats(scale: str) -> Threats:
    chosen = SCALES[scale]
    size = f"Models of {chosen.shape['n_layer']} layers, trained from scratch"
    steps = chosen.train["max_steps"]
    return Threats(
        internal=[
            "All arms are trained on the same text in the same order for the same number of steps, "
            "at Transformer-XL's own learning rate, except for five numbers per layer in "
            "rsa-xl-fast and rsa-brt.",
            *([] if scale in ("smoke", "paper") else [LOST]),
        ],
        construct=[
            "Bits are per byte: a character outside ASCII counts as several. The test text is read "
            "in twenty parts, each of which begins without a memory."
        ],
        external=["Enwik8 without line ends, 204 symbols, as Transformer-XL prepares it."]
        if "enwik8-204" in chosen.texts
        else [],
        scale="" if scale == "smoke" else f"{size} for {steps:,} of the paper's 400,000 steps.",
    )


EXPERIMENT = Experiment(
    title="Attention: recurrence inside it",
    question="Does a recurrence inside attention (RSA) make character models better, or at least "
    "not "
    "worse, and does it help with little training text?",
    source="Huang et al.: Encoding Recurrence into Transformers (ICLR 2023); its reproduction; "
    "Hutchins "
    "et al.: Block-Recurrent Transformers (2022)",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2), "real": (0,), "paper": (0,)},
    place=8,
)
