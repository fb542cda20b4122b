"""Tables 1 and 2 of the method: perplexity over overlap, plain against recurrent, and the cost.

    holdover run experiments/overlap.py --scale small

* rates: one short run for each learning rate and kind, on WikiText; the best on its validation split is
  used on every text.
* plain: trained without overlap, evaluated at all overlaps; also with windows of all positions.
* recurrent: one model for each overlap, evaluated at its own; also a plain one trained at the largest.
* cache: a plain model that keeps the keys and values of the last tokens, with and without a document's
  first tokens; only for models with rotary positions.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from language import (
    SCALES,
    STOCK,
    common,
    has_stock,
    last_validation,
    read,
    read_stock,
    scored,
    text_of,
    train,
)
from overlap_arms import FIRST, KEPT, KINDS, arms, cached_loss, carry, named, tokens_with_cache
from overlap_shown import layout

from holdover.evaluation.sliding_cache import bytes_a_token, read_with_cache
from holdover.experiments.definition import Experiment, Run
from holdover.experiments.measures import of_evaluation, ratio
from holdover.experiments.run_context import RunContext
from holdover.recurrent.attach import remove_recurrence
from holdover.runs.models import RUN, open_model, read_run
from holdover.text.options import TextOptions
from holdover.text.splits import read_text
from holdover.tokenization.encoders import open_encoder


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    chosen = SCALES[scale]
    # Learning rates are chosen on this text.
    *_, first = chosen.texts
    rates = {
        kind: [
            Run(
                f"rate {rate:g} {kind}",
                try_rate,
                {
                    **common(scale),
                    "text": first,
                    "rate": rate,
                    "recurrence": carry(kind, chosen.window, 0),
                },
                seeds[0],
            )
            for rate in chosen.rates
        ]
        for kind in KINDS
    }
    made = [run for kind in KINDS for run in rates[kind]]
    for text in chosen.texts if has_stock(scale) else ():
        settings = {**common(scale), "text": text, "window": chosen.window}
        overlaps = list(chosen.plain_overlaps)
        made.append(
            Run(named(STOCK, text), measure_stock, {**settings, "overlaps": overlaps}, seeds[0])
        )
    for seed in seeds:
        for text in chosen.texts:
            for kind, window, overlap, read_at in arms(scale):
                settings = {
                    **common(scale, window),
                    "text": text,
                    "rates": list(chosen.rates),
                    "recurrence": carry(kind, window, overlap),
                    "overlaps": list(read_at),
                }
                name = named(kind, text, overlap, full=window == chosen.positions)
                after = tuple(run.name for run in rates[kind])
                made.append(Run(name, measure, settings, seed, after))
            if scale in KEPT:
                plain = made[-len(arms(scale))]
                settings = {
                    **common(scale),
                    "text": text,
                    "rates": list(chosen.rates),
                    "recurrence": carry("plain", chosen.window, 0),
                    "kept": list(KEPT[scale]),
                    "first": [0, FIRST],
                    "document_tokens": tokens_with_cache(scale, text),
                }
                made.append(Run(named("cache", text), measure_cache, settings, seed, (plain.name,)))
    return made


def try_rate(work: RunContext) -> dict[str, Any]:
    settings = work.settings
    model = train(work, text_of(work), settings["rate"], settings["recurrence"])
    work.read(read_run(model / RUN)["data"]["training"])
    return {"valid_loss": last_validation(model.parent)}


def measure(work: RunContext) -> dict[str, Any]:
    settings = work.settings
    tried = [one["valid_loss"] for one in work.found.values()]
    rate = settings["rates"][tried.index(min(tried))]
    model = train(work, text_of(work), rate, settings["recurrence"])
    work.read(read_run(model / RUN)["data"]["training"])
    return {"learning_rate": rate, **read_at(work, model)}


def measure_stock(work: RunContext) -> dict[str, Any]:
    overlaps = list(work.settings["overlaps"])
    record = read_stock(work, text_of(work), window=work.settings["window"], overlap=overlaps)
    return at_overlaps(work, record)


def measure_cache(work: RunContext) -> dict[str, Any]:
    """The trained plain model with caches of several sizes, on the beginning of every document."""
    settings, text = work.settings, text_of(work)
    (plain,) = work.found.values()
    # Reused from the plain arm if it is still there.
    model = train(work, text, plain["learning_rate"], settings["recurrence"])
    device, window = work.device, settings["recurrence"]["window"]
    work.read(read_run(model / RUN)["data"]["training"])
    backbone = remove_recurrence(open_model(str(model))).to(device).eval()
    places = {key: work.common[key] for key in ("data_dir", "cache_dir") if key in work.common}
    options = TextOptions(data=text.test, **places)
    tokens = read_text(options, open_encoder(model), "test", window=window)
    work.read(tokens.about)
    tokens = tokens.truncated(settings["document_tokens"])
    measures: dict[str, Any] = {
        "learning_rate": plain["learning_rate"],
        "cache_bytes_a_token": bytes_a_token(backbone.config, torch.bfloat16),
    }
    half = settings["read"].get("bf16", False)
    for first, kept in product(settings["first"], settings["kept"]):
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            scores = read_with_cache(backbone, tokens, window, kept, rows=32, first=first)
        over = f"{tokens.documents} documents"
        measures[cached_loss(first, kept)] = ratio(scores.nats, scores.tokens, over)
    return measures


def read_at(work: RunContext, model: Any) -> dict[str, Any]:
    """Measures at every overlap, and with every window as a text of its own."""
    text = text_of(work)
    measures = at_overlaps(work, read(work, model, text, overlap=list(work.settings["overlaps"])))
    if work.settings["recurrence"]["carry"] != "none":
        alone = read(work, model, text, "alone", overlap=[0], carry=1, diagnose_state=False)
        measures["single_window_loss"] = of_evaluation(alone)["loss"]
    return measures


def at_overlaps(work: RunContext, record: Mapping[str, Any]) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    for number, overlap in enumerate(work.settings["overlaps"]):
        part = scored(record, text_of(work), number)
        measures |= {f"{name}@{overlap}": value for name, value in part.items()}
    if "loss@0" in measures:
        # Without a state every window is read alone.
        measures["single_window_loss"] = measures["loss@0"]
    return measures


EXPERIMENT = Experiment(
    title="Overlap: plain against recurrent",
    question="With overlapping windows, a model reads some tokens again and so has more context. "
    "Can a "
    "carried state replace this, and what does each cost?",
    source="Yoshida, Ettinger, Gimpel: Adding Recurrence to Pretrained Transformers, Tables 1 and "
    "2",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0, 1), "small": (0, 1, 2), "real": (0,), "paper": (0,)},
    place=1,
)
