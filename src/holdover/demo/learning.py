"""The demo's fourth stage: recurrence is trained into the plain twin for a minute.

The end of the text is held out. The plain twin reads it before training; the trained model reads it
afterwards, with the state and without. The difference with and without is the effect of the state; the
rest of the gain comes from knowing the text.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..evaluation.intervals import Resampled, units_of
from ..evaluation.scoring import score
from ..evaluation.token_lens import NATS_A_BIT, lens
from ..language.eval_options import EvalOptions
from ..language.evaluation import open_to_read
from ..language.options import TrainOptions
from ..language.training import train
from ..runs.models import open_model
from ..text.splits import read_text
from ..text.tokens import Tokens
from ..tokenization.encoders import encoder_of
from ..training.log import LOG, read_log
from .options import DemoOptions

# A short window leaves more for the state to carry, so that a minute of training shows an effect.
WINDOW = 64
# The most tokens read of the held-out end: more would take longer than the training.
HELD_OUT = 5000
SHORTEST = 2000
RAN_HERE = ".holdover-demo"
RECIPE: dict[str, Any] = {
    "window": WINDOW,
    "recurrence": {"carry": "tokens", "slots": 8, "map_hidden": []},
    "windows": 4,
    "rows": 4,
    "learning_rate": 2e-4,
    "added_learning_rate": 2e-3,
    "warm_up": 10,
    "epochs": 1000,
    "patience": None,
    "validate_every": 10**9,
    "save_every": 10**9,
    "validation_tokens": 2000,
}


def learn(
    options: DemoOptions, folder: str, device: torch.device, console: Console
) -> dict[str, Any]:
    """folder: the plain twin."""
    output = options.output / "learnt"
    _clear(output)
    held_out = held_out_of(options, folder)
    before: Any = open_to_read(folder, WINDOW)
    before.to(device).eval()
    with before.reading(window=WINDOW, overlap=0):
        was = score(before, held_out, rows=16, device=device)
    progress = train(
        TrainOptions.of(
            model=folder,
            data=_data(options),
            output=output,
            max_time=options.minutes,
            max_steps=options.max_steps,
            seed=options.seed,
            device=options.device,
            **RECIPE,
        ),
        console=console,
    )
    if progress.step == 0:
        raise ValueError(
            f"The training made no step in {options.minutes:g} minutes: give it more --minutes."
        )
    model: Any = open_model(str(output))
    seen = lens(model.to(device).eval(), held_out)
    losses = [line for line in read_log(output / LOG) if "loss" in line]
    units, over = units_of(seen.document[was.scored], seen.window[was.scored])
    resampled = Resampled(units)
    return {
        "text": "the bundled novel" if options.text is None else options.text.name,
        "steps": progress.step,
        "tokens": progress.tokens,
        "window": WINDOW,
        "seconds": round(progress.seconds, 1),
        "held_out_tokens": int(was.scored.sum()),
        "over": f"{resampled.count} {over}",
        "curve": [[line["step"], round(line["loss"], 4)] for line in losses],
        "before": perplexity(was.nll[was.scored], resampled),
        "after": perplexity(seen.own[was.scored] * NATS_A_BIT, resampled),
        "after_zeroed": perplexity(seen.without[was.scored] * NATS_A_BIT, resampled),
        "after_other": perplexity(seen.other[was.scored] * NATS_A_BIT, resampled),
    }


def held_out_of(options: DemoOptions, folder: str) -> Tokens:
    """The end of the text, or as much of it as time allows; short texts are refused."""
    text = EvalOptions.of(model=folder, data=_data(options))
    encoder = encoder_of(folder)
    whole = read_text(text, encoder, "all", window=WINDOW)
    if len(whole) < SHORTEST:
        raise ValueError(
            f"--text {options.text} has only {len(whole):,} tokens, but the training needs at least "
            f"{SHORTEST:,}: give a longer text."
        )
    return read_text(text, encoder, "valid", window=WINDOW).truncated(HELD_OUT)


def _data(options: DemoOptions) -> str:
    return "time-machine" if options.text is None else str(options.text)


def perplexity(nats: np.ndarray, resampled: Resampled) -> dict[str, Any]:
    value, low, high = resampled.interval(
        resampled.per_unit(nats), resampled.per_unit(np.ones(len(nats)))
    )
    return {"value": value, "low": low, "high": high}


def _clear(folder: Path) -> None:
    """Remove the training of an earlier demo, and nothing else."""
    if (folder / RAN_HERE).exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RAN_HERE).touch()
