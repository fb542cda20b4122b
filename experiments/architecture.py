"""A table of the choices that the method's authors tried and report in one sentence.

    holdover run experiments/architecture.py --scale small

Every arm changes the published settings as its name says; the plain arm has no state.
"""

from collections.abc import Sequence
from typing import Any

from language import (
    SCALES,
    STOCK,
    common,
    done,
    has_stock,
    measures_of,
    middle_rate,
    read_stock,
    scored,
    text_of,
    threats_of_texts,
    train,
)

from holdover.experiments.definition import (
    Answer,
    Claim,
    Expectation,
    Experiment,
    Layout,
    Run,
    Table,
    Threats,
    Value,
)
from holdover.experiments.run_context import RunContext

PLAIN, PUBLISHED = "plain", "as published"
# The changes of each arm to the published settings; "middle" and "last" are layers of the model.
CHANGES: dict[str, dict[str, Any]] = {
    PLAIN: {"carry": "none"},
    PUBLISHED: {},
    "max pooling": {"pooling": "max"},
    "fixed-key pooling": {"pooling": "fixed-key"},
    "attention pooling": {"pooling": "attention"},
    # Several embeddings from one mean would be equal, so each has its own query.
    "4 embeddings, attention": {"slots": 4, "pooling": "attention"},
    "16 embeddings, attention": {"slots": 16, "pooling": "attention"},
    "all layers": {"insert_layer": "all"},
    "inserted at layer 1": {"insert_layer": 1},
    "inserted in the middle": {"insert_layer": "middle"},
    "inserted at the last layer": {"insert_layer": "last"},
    "last layer pooled": {"mix_layers": "last"},
    "one linear map": {"map_hidden": []},
    "learned start": {"start": "learned"},
    "no gradient between windows": {"detach_state": True},
    "last 16 positions, all layers": {
        "slots": 16,
        "pooling": "last",
        "insert_layer": "all",
        "map_hidden": [],
    },
    "16 memory tokens": {"carry": "tokens", "slots": 16, "map_hidden": []},
}
LAYERS = {"smoke": 2, "small": 6, "real": 30, "paper": 12}
IN_SMOKE = (PLAIN, PUBLISHED, "max pooling", "inserted at the last layer")
COLUMNS = (
    "choice",
    "perplexity per word",
    "above plain",
    "above published",
    "state removed",
    "another text's state",
    "weights added",
    "FLOPs per token",
)
# Nats per token within which two choices count as equally good: a fraction of a state's gain.
ALIKE = 0.002
# Arms in the summary.
SUMMARY = (PUBLISHED, "inserted in the middle", "16 memory tokens")
# Choices that did not help, according to the authors.
TRIED = (
    "max pooling",
    "4 embeddings, attention",
    "16 embeddings, attention",
    "all layers",
    "fixed-key pooling",
)


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    text = next(iter(SCALES[scale].texts))
    stock = {**common(scale), "text": text, "window": SCALES[scale].window}
    made = [Run(STOCK, measure_stock, stock, seeds[0])] if has_stock(scale) else []
    return made + [
        Run(
            arm,
            measure,
            {
                **common(scale),
                "text": text,
                "rate": middle_rate(scale),
                "recurrence": settings_of(arm, scale),
            },
            seed,
        )
        for seed in seeds
        for arm in arms(scale)
    ]


def arms(scale: str) -> Sequence[str]:
    return IN_SMOKE if scale == "smoke" else tuple(CHANGES)


def settings_of(arm: str, scale: str) -> dict[str, Any]:
    settings = {"carry": "pooled", "window": SCALES[scale].window, **CHANGES[arm]}
    places = {"middle": LAYERS[scale] // 2, "last": LAYERS[scale]}
    if settings.get("insert_layer") in places:
        settings["insert_layer"] = places[settings["insert_layer"]]
    return settings


def measure(work: RunContext) -> dict[str, Any]:
    settings, text = work.settings, text_of(work)
    model = train(work, text, settings["rate"], settings["recurrence"])
    return measures_of(work, model, text)


def measure_stock(work: RunContext) -> dict[str, Any]:
    text = text_of(work)
    return scored(read_stock(work, text, window=work.settings["window"]), text)


def layout(scale: str) -> Layout:
    shown = arms(scale)
    return Layout(
        done=done(scale, whole=False, rate=middle_rate(scale)),
        answers=[
            Answer(
                f"{'; '.join(f'{arm} {{}} (state removed {{}})' for arm in SUMMARY)}.".capitalize(),
                [value for arm in SUMMARY for value in (above(arm, PLAIN), taken_away(arm))],
            )
        ],
        claims=[
            Claim(
                "The published state lowers the loss.",
                "section 3.1",
                [Expectation(above(PUBLISHED, PLAIN), "below", said="above plain")],
            ),
            Claim(
                "Max pooling, pooling with a fixed key, several embeddings and insertion at all "
                "layers "
                f"are not better than the published choice by more than {ALIKE} nats per token.",
                "section 3.1, in words",
                [
                    Expectation(above(arm, PUBLISHED), "above", -ALIKE, said=arm)
                    for arm in TRIED
                    if arm in shown
                ],
                # If no state is used, equal losses mean nothing.
                rests_on=Expectation(
                    taken_away(PUBLISHED),
                    "above",
                    said="the published state is used: loss without it",
                ),
            ),
            Claim(
                "Choices that the authors do not mention are better than the published one.",
                "our question",
                [
                    Expectation(above(arm, PUBLISHED), "below", said=arm)
                    for arm in shown
                    if arm not in (PLAIN, PUBLISHED, *TRIED)
                ],
                ours=True,
            ),
            *([trained_further(PLAIN, PUBLISHED)] if has_stock(scale) else []),
        ],
        tables=[
            Table(
                "Choices, one at a time",
                COLUMNS,
                [row(arm) for arm in ([STOCK] if has_stock(scale) else []) + list(shown)],
                "In nats per token, paired. State removed, another text's state: how much the loss "
                "of the same model rises, on the same windows (up to 400, drawn at random). If it "
                "does not rise, the state is not used; if another text's state does as well, its "
                "content is not used. FLOPs are counted, not taken from the papers' formula. As it "
                "was: the model before training here.",
            )
        ],
        threats=Threats(
            internal=[
                "All arms have the same learning rates: the middle ones of the scale's list.",
                f"{PUBLISHED.capitalize()} and plain are the same trainings as in the experiment "
                "on window "
                f"sizes at {SCALES[scale].window} tokens: they count as evidence once.",
            ],
            external=threats_of_texts(scale),
            construct=[
                "An arm with more embeddings also has more weights: see the column of added "
                "weights."
            ],
        ),
    )


def above(arm: str, other: str) -> Value:
    return Value("loss", arm, other, "{:+.4f}")


def taken_away(arm: str) -> Value:
    return Value("state_zeroed", arm, form="{:+.4f}")


def trained_further(*arms: str) -> Claim:
    """A check that training has an effect."""
    return Claim(
        "Training lowers the loss of the original model.",
        "a check",
        [Expectation(above(arm, STOCK), "below", said=arm) for arm in arms],
        ours=True,
    )


def row(arm: str) -> list[Any]:
    counted = Value("flops_counted", arm, form="{:.3g}")
    if arm == STOCK:
        return [arm, Value("perplexity", arm), above(arm, PLAIN), "", "", "", "", counted]
    if arm == PLAIN:
        return [arm, Value("perplexity", arm), "", "", "", "", "", counted]
    return [
        arm,
        Value("perplexity", arm),
        above(arm, PLAIN),
        "" if arm == PUBLISHED else above(arm, PUBLISHED),
        taken_away(arm),
        Value("state_other", arm, form="{:+.4f}"),
        Value("parameters_added", arm, form="{:,.0f}"),
        counted,
    ]


EXPERIMENT = Experiment(
    title="What the state is made of",
    question="Which choices in the recurrence matter: how a window is pooled, into how many "
    "vectors, and "
    "which layers read them?",
    source="Yoshida, Ettinger, Gimpel: Adding Recurrence to Pretrained Transformers, section 3.1",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2), "real": (0,), "paper": (0,)},
    place=3,
)
