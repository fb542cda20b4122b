"""Figures 4 and 5 of the method: larger windows, or a carried state? Perplexity over FLOPs and memory.

    holdover run experiments/window_size.py --scale small

One plain and one recurrent model for each window size, trained without overlap on the books. Plain
models are also evaluated with overlaps, which costs FLOPs.
"""

from collections.abc import Sequence
from typing import Any

from language import (
    SCALES,
    batch,
    common,
    done,
    measures_of,
    middle_rate,
    read,
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
    Figure,
    Layout,
    Run,
    Series,
    Table,
    Threats,
    Value,
)
from holdover.experiments.measures import paired_difference
from holdover.experiments.run_context import RunContext

CARRIES = {"plain": "none", "recurrent": "pooled"}
# Overlaps of plain models, in addition to 0.
OVERLAPS = {"smoke": (4,), "small": (30, 50), "real": (30, 50), "paper": (30, 50)}
MB = 1e6
# Texts that all arms read in parallel, so that their memory can be compared; the test set has enough.
ROWS = {"smoke": 1, "small": 22, "real": 22, "paper": 16}
COLUMNS = (
    "window",
    "plain",
    "recurrent",
    "nats per token",
    "FLOPs per token",
    "MB, plain",
    "MB, recurrent",
)


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    made = []
    for seed in seeds:
        for window in SCALES[scale].windows:
            after: tuple[str, ...] = ()
            for kind, carry in CARRIES.items():
                settings = {
                    **common(scale, window),
                    "text": next(iter(SCALES[scale].texts)),
                    "rate": middle_rate(scale),
                    "recurrence": {"carry": carry, "window": window},
                    "rows": ROWS[scale],
                    "overlaps": list(OVERLAPS[scale]) if kind == "plain" else [],
                }
                made.append(Run(named(kind, window), measure, settings, seed, after))
                # The recurrent model measures its gain over the plain one.
                after = (made[-1].name,)
    return made


def named(kind: str, window: int) -> str:
    return f"{kind} {window}"


def measure(work: RunContext) -> dict[str, Any]:
    settings, text = work.settings, text_of(work)
    model = train(work, text, settings["rate"], settings["recurrence"])
    measures = measures_of(work, model, text, rows=settings["rows"])
    if overlaps := settings["overlaps"]:
        record = read(work, model, text, "overlaps", overlap=overlaps)
        for number, overlap in enumerate(overlaps):
            part = scored(record, text, number)
            names = ("loss", "perplexity", "flops_per_token")
            measures |= {f"{name}@{overlap}": part[name] for name in names}
    for plain in work.found.values():
        measures["above_plain"] = paired_difference(measures["loss"], plain["loss"])
    return measures


def layout(scale: str) -> Layout:
    windows = SCALES[scale].windows
    return Layout(
        done=done(scale, whole=False, rate=middle_rate(scale)) + batches(scale),
        answers=[
            Answer(
                f"The published state: {{}} with windows of {windows[0]}, {{}} with windows of "
                f"{windows[-1]}.",
                [difference(windows[0]), difference(windows[-1])],
            )
        ],
        claims=[
            Claim(
                "For every window size the recurrent model has a lower perplexity than the plain "
                "one, at the same FLOPs by the paper's formula.",
                "Figure 4",
                [
                    Expectation(difference(window), "below", said=f"windows of {window}")
                    for window in windows
                ],
            ),
            Claim(
                "A state gains more with the smallest windows than with the largest.",
                "section 5.2, Figure 4",
                [
                    Expectation(
                        gap(windows[0], windows[-1]),
                        "below",
                        said=f"loss above plain with windows of {windows[0]}, minus that with "
                        "windows of "
                        f"{windows[-1]}",
                    )
                ],
            ),
        ],
        tables=[
            Table(
                "Perplexity per word by window",
                COLUMNS,
                [row(window) for window in windows],
                "Nats per token: recurrent minus plain, paired. MB: peak while reading. The "
                "experiment on three questions measures the time a state costs, with nothing else "
                "on the device.",
            )
        ],
        figures=[
            over("flops_per_token", "FLOPs per token", windows, OVERLAPS[scale]),
            over("reading_memory", "peak memory while reading (bytes)", windows),
        ],
        threats=Threats(
            internal=[
                "All arms have the middle learning rate of the scale's list and the same number of "
                "steps with about as many tokens. Gradients reach about as many tokens back, and "
                "so through more windows if these are smaller.",
                f"Windows of {SCALES[scale].window} are the same trainings as in the table of "
                "choices, with the same seeds: they are not additional evidence.",
            ],
            external=[
                *threats_of_texts(scale),
                *(["Windows of 600 do not fit: the model has 512 positions."] * (scale == "small")),
            ],
            construct=[
                f"Peak memory is for {ROWS[scale]} texts in parallel: it compares arms and is not "
                "the minimum a model needs. FLOPs follow the paper's formula, which ignores the "
                "state's cost."
            ],
        ),
    )


def batches(scale: str) -> str:
    """The tokens of a step with windows of other sizes."""
    chosen = SCALES[scale]
    sizes = [
        f"{size['rows']} rows x {size['windows']} of {window}"
        for window in chosen.windows
        if window != chosen.window and (size := batch(chosen, window))
    ]
    return f" With other windows: {', '.join(sizes)}." if sizes else ""


def difference(window: int) -> Value:
    return Value("loss", named("recurrent", window), named("plain", window), "{:+.4f}")


def gap(small: int, large: int) -> Value:
    """How much more the state gains with small windows than with large ones."""
    return Value(
        "above_plain", named("recurrent", small), named("recurrent", large), form="{:+.4f}"
    )


def row(window: int) -> list[Any]:
    plain, recurrent = named("plain", window), named("recurrent", window)
    return [
        str(window),
        Value("perplexity", plain),
        Value("perplexity", recurrent),
        difference(window),
        Value("flops_per_token", plain, form="{:.3g}"),
        *(Value("reading_memory", arm, form="{:.1f}", unit=MB) for arm in (plain, recurrent)),
    ]


def over(metric: str, label: str, windows: Sequence[int], overlaps: Sequence[int] = ()) -> Figure:
    """Both models, and plain models evaluated with an overlap."""
    curves = [(kind, kind, "") for kind in CARRIES]
    curves += [("plain", f"plain, overlap {overlap}", f"@{overlap}") for overlap in overlaps]
    return Figure(
        f"Perplexity over {label}",
        label,
        "Perplexity per word",
        [
            Series(
                name,
                [
                    tuple(
                        Value(f"{one}{at}", named(kind, window)) for one in (metric, "perplexity")
                    )
                    for window in windows
                ],
                # The recurrent model's points lie below them, at the same FLOPs.
                [str(window) if name == "plain" else "" for window in windows],
            )
            for kind, name, at in curves
        ],
        "The labels are the window sizes of the plain models. Differences at one size are known "
        "more precisely than the bars suggest: they are paired (see the table).",
        frontier=True,
    )


EXPERIMENT = Experiment(
    title="Window sizes",
    question="A larger window also gives more context. At the same cost, is a larger window or a "
    "carried "
    "state better?",
    source="Yoshida, Ettinger, Gimpel: Adding Recurrence to Pretrained Transformers, Figures 4 and "
    "5",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2), "real": (0,), "paper": (0,)},
    place=2,
)
