"""Figures 4 and 5 of the method: larger windows, or a carried state? Perplexity over FLOPs and memory.

    holdover run experiments/window_size.py --scale small

One plain and one recurrent model for each window, trained without overlap, on the books; plain ones are
read with overlaps as well, which costs them FLOPs.
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
# Of a plain model, beside none.
OVERLAPS = {"smoke": (4,), "small": (30, 50), "real": (30, 50), "paper": (30, 50)}
# Texts that all arms read side by side, so that their memory can be compared: no more than there are.
MB = 1e6
ROWS = {"smoke": 1, "small": 22, "real": 22, "paper": 16}
COLUMNS = (
    "window",
    "plain",
    "recurrent",
    "nats a token",
    "FLOPs a token",
    "MB, plain",
    "MB, recurrent",
)


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    found = []
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
                found.append(Run(named(kind, window), measure, settings, seed, after))
                # What the recurrent one gains over it is a measure of its own.
                after = (found[-1].name,)
    return found


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
                f"The published state: {{}} in windows of {windows[0]}, {{}} in windows of "
                f"{windows[-1]}.",
                [difference(windows[0]), difference(windows[-1])],
            )
        ],
        claims=[
            Claim(
                "In windows of every size the recurrent model's perplexity is lower than the plain "
                "one's, at the same FLOPs by the paper's formula.",
                "Figure 4",
                [
                    Expectation(difference(window), "below", said=f"windows of {window}")
                    for window in windows
                ],
            ),
            Claim(
                "In the smallest windows a state gains more than in the largest.",
                "section 5.2, Figure 4",
                [
                    Expectation(
                        gap(windows[0], windows[-1]),
                        "below",
                        said=f"loss above plain in windows of {windows[0]}, above that of "
                        f"{windows[-1]}",
                    )
                ],
            ),
        ],
        tables=[
            Table(
                "Perplexity a word by window",
                COLUMNS,
                [row(window) for window in windows],
                "Nats a token: recurrent minus plain, paired. MB: peak while reading. What a state "
                "costs in time is measured in the three questions, with nothing beside.",
            )
        ],
        figures=[
            over("flops_per_token", "FLOPs a token", windows, OVERLAPS[scale]),
            over("reading_memory", "peak memory while reading (bytes)", windows),
        ],
        threats=Threats(
            internal=[
                "All arms have the middle learning rate of the scale's list, and make as many steps of "
                "about as many tokens: gradients go about as many tokens back, and so through more "
                "windows where these are smaller.",
                f"Windows of {SCALES[scale].window} are trained as they are for the table of choices, "
                "with the same seeds: no evidence beside it.",
            ],
            external=[
                *threats_of_texts(scale),
                *(["Windows of 600 do not fit: the model has 512 positions."] * (scale == "small")),
            ],
            construct=[
                f"Peak memory is that of {ROWS[scale]} texts side by side: it compares arms, and is no "
                "model's least. FLOPs are the formula of the paper, which counts the state as nothing."
            ],
        ),
    )


def batches(scale: str) -> str:
    """What a step reads in windows of other sizes."""
    chosen = SCALES[scale]
    told = [
        f"{found['rows']} rows x {found['windows']} of {window}"
        for window in chosen.windows
        if window != chosen.window and (found := batch(chosen, window))
    ]
    return f" In other windows: {', '.join(told)}." if told else ""


def difference(window: int) -> Value:
    return Value("loss", named("recurrent", window), named("plain", window), "{:+.4f}")


def gap(small: int, large: int) -> Value:
    """What the state gains in small windows above what it does in large ones."""
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
    """The models' points, and those of plain ones that read with an overlap."""
    curves = [(kind, kind, "") for kind in CARRIES]
    curves += [("plain", f"plain, overlap {overlap}", f"@{overlap}") for overlap in overlaps]
    return Figure(
        f"Perplexity over {label}",
        label,
        "Perplexity a word",
        [
            Series(
                name,
                [
                    tuple(
                        Value(f"{one}{at}", named(kind, window)) for one in (metric, "perplexity")
                    )
                    for window in windows
                ],
                # At the same FLOPs the recurrent one's lie below them.
                [str(window) if name == "plain" else "" for window in windows],
            )
            for kind, name, at in curves
        ],
        "At plain models' points: the window. Differences in a window are known more closely than the "
        "bars suggest: they are paired (see the table).",
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
    place=2,
)
