"""The layout of the three questions: claims, tables, figures, threats to validity."""

from collections.abc import Mapping
from typing import Any

from three_questions_arms import (
    ARMS,
    COMMON,
    COST,
    FAMILIES,
    GPT2,
    SCALES,
    XLNET,
    Scale,
    arm_at,
    carries,
)

from holdover.experiments.definition import (
    Answer,
    Cell,
    Claim,
    Expectation,
    Figure,
    Layout,
    Series,
    Table,
    Threats,
    Value,
)
from holdover.pages.wording import scaled

QUALITY = (
    "model",
    "bits per byte",
    "above its base",
    "at equal FLOPs",
    "overlap for that",
    "converged after",
    "state removed",
    "another text's state",
    "FLOPs per token",
    "weights",
)
# Nats per byte within which two models count as equally good.
ALIKE = 0.005
COSTS = (
    "model",
    "training, bytes/s",
    "time relative to its base",
    "training memory, GB",
    "above its base",
    "machine memory, GB",
    "above its base",
    "reading, bytes/s",
    "relative to its base",
)
# The cost that the project's plan allows.
GB = 1e9
MOST_TIME, LEAST_SPEED, MOST_MEMORY, MOST_RESIDENT = 1.20, 0.95, 2 * GB, 16 * GB


def layout(scale: str) -> Layout:
    chosen = SCALES[scale]
    texts, how = tuple(chosen.texts), chosen.train | chosen.to_the_end
    step = how["rows"] * how["windows"] * chosen.window
    rate = next(iter(chosen.rates.values()), (COMMON["learning_rate"],))[0]
    tried = any(len(rates) > 1 for rates in chosen.rates.values())
    recurrent = [(arm, base) for arm, (_, _, base) in ARMS.items() if base in ("GPT-2", "XLNet")]
    own = [(arm, base) for arm, base in recurrent if arm.startswith((GPT2, XLNET)) and carries(arm)]
    return Layout(
        done=f"Models of {chosen.layers} layers x {chosen.width} with random weights, each trained "
        "on "
        f"{' and on '.join(texts)}: steps of {how['rows']} rows x {how['windows']} windows of "
        f"{chosen.window} bytes, {steps_taken(chosen, how['max_steps'], step)}.",
        answers=[*map(answer, texts), cost_answer()],
        claims=[
            Claim(
                "Recurrence lowers the loss of the same architecture.",
                "question 1: long-range modelling",
                [
                    Expectation(above(text, arm, base), "below", said=f"{text}, {arm}")
                    for text in texts
                    for arm, base in own
                ],
                ours=True,
            ),
            Claim(
                f"Window recurrence is as good as XLNet's own memory, or at most {ALIKE} nats per "
                "byte worse.",
                "question 2: quality against others",
                [
                    Expectation(
                        above(text, "XLNet, pooled state", "XLNet, its own memory"),
                        "below",
                        ALIKE,
                        text,
                    )
                    for text in texts
                ],
                ours=True,
            ),
            Claim(
                "A pooled state is better than the same number of weights without one.",
                "question 2: quality at equal parameters",
                [
                    Expectation(
                        above(text, "GPT-2, pooled state", "GPT-2, as many weights"),
                        "below",
                        said=text,
                    )
                    for text in texts
                ],
                ours=True,
            ),
            Claim(
                "Recurrence is better than windows that overlap as far as equal FLOPs allow.",
                "question 2: quality at equal FLOPs",
                [
                    Expectation(
                        Value("above_at_equal_flops", f"{text}: {arm}", form="{:+.4f}"),
                        "below",
                        said=f"{text}, {arm}",
                    )
                    for text in texts
                    for arm, _ in own
                ],
                ours=True,
            ),
            Claim(
                "Recurrence costs at most 20 % more training time, 2 GB more device memory and 16 "
                "GB more machine memory, and reads at most 5 % slower.",
                "question 3: cost, the plan's own budget",
                [
                    Expectation(
                        Value(
                            f"{metric}: {arm}",
                            COST,
                            form=form,
                            counted=metric in ("training_memory_above", "resident_above"),
                            unit=GB if said.endswith("GB") else 1.0,
                        ),
                        side,
                        bound,
                        f"{arm}, {said}",
                    )
                    for arm, _ in own
                    for metric, form, side, bound, said in (
                        ("training_time_ratio", "{:.2f}", "below", MOST_TIME, "training time"),
                        ("reading_speed_ratio", "{:.2f}", "above", LEAST_SPEED, "reading speed"),
                        ("training_memory_above", "{:+.2f}", "below", MOST_MEMORY, "memory, GB"),
                        (
                            "resident_above",
                            "{:+.2f}",
                            "below",
                            MOST_RESIDENT,
                            "machine memory, GB",
                        ),
                    )
                ],
                ours=True,
            ),
        ],
        tables=[
            *([rates_table(chosen)] if tried else []),
            *(table for text in texts for table in (quality(text), next_token(text))),
            cost(chosen),
        ],
        figures=[
            figure
            for text in texts
            for figure in (
                gained(text, "loss by position", "position in the window", log_x=False),
                gained(text, "loss by distance", "bytes before", log_x=True),
                *(validations(text, group) for group in FAMILIES),
            )
        ],
        threats=Threats(
            scale=f"Models of {chosen.layers} layers, trained from scratch: larger models, or "
            "longer "
            "training, may behave differently.",
            external=[
                "Random weights and bytes: no model was pretrained on other text.",
                *(f"On {text}: {limits_of(limits)}." for text, (_, limits) in chosen.texts.items()),
            ],
            internal=[
                "Learning rates are chosen for the plain model and used for all its variants: from "
                "short lists, on one text, with one seed, by the last validation. XLNet's was not "
                "tuned."
                if tried
                else f"One learning rate for all, {rate:g}, which was not tuned.",
                *(
                    [
                        "XLNet and models compared with it are trained for fewer steps than the "
                        "others. The steps of the others were doubled after first results: at half "
                        "of them GPT-2 did not use its context yet, and at the end it was still "
                        "learning."
                    ]
                    if chosen.steps
                    else []
                ),
            ],
            construct=[
                "Cost is measured without compilation. Small models wait for Python, which has "
                "more to do with a state: compiled or replayed they would differ less. They are "
                "trained in one process in sequence: machine memory that an earlier model leaves "
                "counts for later ones.",
            ],
        ),
    )


def answer(text: str) -> Answer:
    arms = ("GPT-2, pooled state", "GPT-2, memory tokens", "Transformer-XL")
    return Answer(
        f"From random weights on the bytes of {text}, compared with GPT-2: "
        f"{'; '.join(f'{arm} {{}} (state removed {{}})' for arm in arms)}.",
        [
            value
            for arm in arms
            for value in (
                above(text, arm, "GPT-2"),
                Value("state_zeroed", f"{text}: {arm}", form="{:+.4f}"),
            )
        ],
    )


def cost_answer() -> Answer:
    arm = "GPT-2, pooled state"
    return Answer(
        "Cost of the published state for GPT-2, without compilation: {} times the training time, "
        "{} GB of device memory, {} times the reading speed.",
        [
            Value(f"training_time_ratio: {arm}", COST),
            Value(f"training_memory_above: {arm}", COST, form="{:+.2f}", counted=True, unit=GB),
            Value(f"reading_speed_ratio: {arm}", COST),
        ],
    )


def steps_taken(scale: Scale, most: int, step: int) -> str:
    """The number of steps, and of the bytes in them."""
    counts = {XLNET: most, GPT2: scale.steps.get(GPT2, most)}
    amounts = [
        f"{count:,} of them, {scaled(count * step)} bytes in total" for count in counts.values()
    ]
    if len(set(amounts)) == 1:
        return f"{amounts[0]}, the same for every arm"
    families = (f"{base} and models compared with it" for base in counts)
    return "; ".join(f"{family}: {its}" for family, its in zip(families, amounts, strict=True))


def rates_table(scale: Scale) -> Table:
    every = sorted({rate for rates in scale.rates.values() for rate in rates})
    rows: list[list[Cell]] = []
    for model, rates in scale.rates.items():
        tried = rates if len(rates) > 1 else ()
        name = model if tried else f"{model} (at {rates[0]:g}, not tuned)"
        losses = {rate: Value("valid_loss", arm_at(rate, model), form="{:.4f}") for rate in tried}
        rows.append([name, *(losses.get(rate, "") for rate in every)])
    return Table(
        f"Learning rates, tried on {next(iter(scale.texts))}",
        ("model", *(f"{rate:g}" for rate in every)),
        rows,
        "Validation loss at the end, nats per byte, one seed. The best rate is used for that model "
        "on every text, for every width and recurrence.",
    )


def above(text: str, arm: str, base: str) -> Value:
    return Value("loss", f"{text}: {arm}", f"{text}: {base}", "{:+.4f}")


def quality(text: str) -> Table:
    return Table(
        f"Quality on {text}",
        QUALITY,
        [
            [
                arm,
                Value("bits_per_byte", f"{text}: {arm}", form="{:.3f}"),
                "" if base is None else above(text, arm, base),
                ""
                if base is None
                else Value("above_at_equal_flops", f"{text}: {arm}", form="{:+.4f}"),
                ""
                if base is None
                else Value("overlap_at_equal_flops", f"{text}: {arm}", form="{:.0f}"),
                "" if base is None else Value("converged_after", f"{text}: {arm}", share=True),
                *(
                    Value(metric, f"{text}: {arm}", form="{:+.4f}") if carries(arm) else ""
                    for metric in ("state_zeroed", "state_other")
                ),
                Value("flops_counted", f"{text}: {arm}", form="{:.3g}"),
                Value("parameters", f"{text}: {arm}", form="{:,.0f}"),
            ]
            for arm, (_, _, base) in ARMS.items()
        ],
        "Above its base: nats per byte above the same architecture without a state (the last two: "
        "above GPT-2), paired. At equal FLOPs: above the base when its windows overlap as far as "
        "the FLOPs of the row allow (0: no overlap fits, so the value equals the column before). "
        "Converged after: the part of the training after which the validation loss reaches the "
        "final loss of the base, over the seeds that reach it, linear between validations. State "
        "removed, another text's state: how much the loss of the same model rises, in nats per "
        "byte. FLOPs are counted, not taken from the papers' formula.",
    )


def next_token(text: str) -> Table:
    metrics = {
        "top1_accuracy": "accuracy",
        "macro_precision": "precision",
        "macro_recall": "recall",
        "macro_f1": "F1",
        "macro_auc": "AUC",
    }
    return Table(
        f"The next byte as a class, on {text}",
        ("model", *metrics.values()),
        [
            [
                arm,
                *(Value(metric, f"{text}: {arm}", form="{:.4f}", share=True) for metric in metrics),
            ]
            for arm in ARMS
        ],
        "Precision, recall, F1 and AUC are means over bytes that occur often enough.",
    )


def cost(scale: Scale) -> Table:
    how = scale.train
    return Table(
        "Cost",
        COSTS,
        [
            [
                arm,
                Value(f"training_speed: {arm}", COST, form="{:,.0f}"),
                "" if base is None else Value(f"training_time_ratio: {arm}", COST),
                Value(f"training_memory: {arm}", COST, unit=GB),
                ""
                if base is None
                else Value(f"training_memory_above: {arm}", COST, form="{:+.2f}", unit=GB),
                Value(f"resident: {arm}", COST, unit=GB),
                ""
                if base is None
                else Value(f"resident_above: {arm}", COST, form="{:+.2f}", unit=GB),
                Value(f"reading_speed: {arm}", COST, form="{:,.0f}"),
                "" if base is None else Value(f"reading_speed_ratio: {arm}", COST),
            ]
            for arm, (_, _, base) in ARMS.items()
        ],
        "All models in one run, in sequence, neither compiled nor replayed. Times of a single run "
        "decide nothing, bytes of a GPU do. GPUs may be slower at the width that gives GPT-2 as "
        "many weights. "
        f"Steps of {how['rows']} rows x {how['windows']} windows of {scale.window} bytes.",
    )


def limits_of(limits: Mapping[str, Any]) -> str:
    """How much of a test text is read, and when its state is reset."""
    limit = f"the first {limits['document_tokens']:,} bytes of each document are scored"
    if carry := limits.get("carry"):
        limit += f", and the state is reset every {carry} windows"
    return limit


def validations(text: str, group: str) -> Figure:
    x, y = "bytes read in training", "validation loss"
    return Figure(
        f"{y.capitalize()} over {x}: {text}, {group}",
        x,
        f"{y} (nats a byte)",
        [Series(arm, curve=(f"{text}: {arm}", "validation")) for arm in FAMILIES[group]],
        later=True,
    )


def gained(text: str, name: str, x: str, *, log_x: bool) -> Figure:
    """The gain of a state on the same bytes, so that their difficulty cancels."""
    drawn = [(arm, base) for arm, (_, _, base) in ARMS.items() if base and arm.startswith(base)]
    return Figure(
        f"Loss above its base over {x}: {text}",
        x,
        "mean loss above its base (nats a byte)",
        [
            Series(arm, curve=(f"{text}: {arm}", name), above=f"{text}: {base}")
            for arm, base in drawn
        ],
        log_x=log_x,
    )
