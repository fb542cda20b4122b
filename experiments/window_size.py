"""Figures 4 and 5 of the method: larger windows, or a carried state? Perplexity over FLOPs and memory.

    holdover run experiments/window_size.py --scale small

One plain and one recurrent model for each window, without overlap, on the books.
"""

from collections.abc import Sequence
from typing import Any

from language import SCALES, common, measures_of, middle_rate, text_of, threats_of_texts, train

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
)

CARRIES = {"plain": "none", "recurrent": "pooled"}
COLUMNS = (
    "window",
    "plain",
    "recurrent",
    "nats a token",
    "FLOPs a token",
    "tokens/s, plain",
    "tokens/s, recurrent",
    "bytes, plain",
    "bytes, recurrent",
)


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    text = next(iter(SCALES[scale].texts))
    return [
        Run(
            named(kind, window),
            measure,
            {
                **common(scale),
                "text": text,
                "rate": middle_rate(scale),
                "recurrence": {"carry": carry, "window": window},
            },
            seed,
        )
        for seed in seeds
        for window in SCALES[scale].windows
        for kind, carry in CARRIES.items()
    ]


def named(kind: str, window: int) -> str:
    return f"{kind} {window}"


def measure(work: Work) -> dict[str, Any]:
    settings, text = work.settings, text_of(work)
    model = train(work, text, settings["rate"], settings["recurrence"])
    return measures_of(work, model, text)


def layout(scale: str) -> Layout:
    windows = SCALES[scale].windows
    return Layout(
        claims=[
            Claim(
                "At every window size the recurrent model's perplexity is lower, for the same FLOPs.",
                "Figure 4",
                [
                    Expectation(difference(window), "below", said=f"windows of {window}")
                    for window in windows
                ],
            )
        ],
        tables=[
            Table(
                "Perplexity a word by window",
                COLUMNS,
                [row(window) for window in windows],
                "Nats a token: recurrent minus plain, paired. Bytes: peak while reading.",
            )
        ],
        figures=[
            over("flops_per_token", "FLOPs a token", windows),
            over("reading_memory", "Peak memory while reading (bytes)", windows),
        ],
        threats=Threats(
            internal=["All arms have the middle learning rate of the scale's list."],
            external=threats_of_texts(scale),
            construct=[
                "Peak memory is that of as many texts side by side as were read: it compares arms of "
                "the same number of rows, and is no model's least."
            ],
        ),
    )


def difference(window: int) -> Value:
    return Value("loss", named("recurrent", window), named("plain", window), "{:+.4f}")


def row(window: int) -> list[Any]:
    plain, recurrent = named("plain", window), named("recurrent", window)
    return [
        str(window),
        Value("perplexity", plain),
        Value("perplexity", recurrent),
        difference(window),
        Value("flops_per_token", plain, form="{:.3g}"),
        *(Value("tokens_per_second", arm, form="{:,.0f}") for arm in (plain, recurrent)),
        *(Value("reading_memory", arm, form="{:.3g}") for arm in (plain, recurrent)),
    ]


def over(metric: str, label: str, windows: Sequence[int]) -> Figure:
    return Figure(
        f"Perplexity over {label}",
        label,
        "Perplexity a word",
        [
            Series(
                kind,
                [
                    (Value(metric, named(kind, window)), Value("perplexity", named(kind, window)))
                    for window in windows
                ],
            )
            for kind in CARRIES
        ],
        frontier=True,
    )


EXPERIMENT = Experiment(
    title="Window sizes: where the frontier lies",
    question="A larger window also brings more context. At the same cost, is it better to enlarge the "
    "window or to carry a state?",
    source="Yoshida, Ettinger, Gimpel: Adding Recurrence to Pretrained Transformers, Figures 4 and 5",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2), "real": (0,), "paper": (0,)},
)
