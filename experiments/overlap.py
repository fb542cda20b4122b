"""Tables 1 and 2 of the method: perplexity over overlap, plain against recurrent, and what it costs.

    holdover run experiments/overlap.py --scale small

* rates: one short run for each learning rate and kind, on WikiText; the best on its validation split is
  used on every text.
* plain: trained without overlap, read at all overlaps; with all positions of the model as well.
* recurrent: one model for each overlap, read at its own; a plain one trained at the largest beside it.
* cache: a plain one behind the keys and values of the last tokens, with a document's first ones and
  without, where its positions are rotary.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from language import (
    SCALES,
    STOCK,
    common,
    done,
    has_stock,
    read,
    read_stock,
    scored,
    text_of,
    threats_of_texts,
    train,
)

from holdover.attach import RUN, open_model, read_run, remove_recurrence
from holdover.data.encoders import open_encoder
from holdover.data.options import TextOptions
from holdover.data.splits import read_text
from holdover.evaluate.sliding_cache import bytes_a_token, read_with_cache
from holdover.experiment import (
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
    Work,
    log_of,
    of_evaluation,
    ratio,
)

KINDS = ("plain", "recurrent")
# Last tokens whose keys and values are kept, one of them being more memory than a state of one
# embedding; how many of a document's first tokens beside them, as published for caches that slide; and
# how much is read of each document.
KEPT = {"smoke": (0, 1, 8), "real": (0, 1, 30, 300)}
FIRST = 4
READ_WITH_CACHE = 30_000
# Nats a token within which two models count as equally good.
ALIKE = 0.005
# Scales at which a plain model too is trained at the largest overlap, to tell what that does to a model
# from what its state does.
TRAINED_ALIKE = ("smoke", "real")
# Per word on the test splits of WikiText-103 and PG-19: overlap, plain, recurrent.
PUBLISHED = {
    "wikitext": {
        0: ("30.47", "29.01"),
        5: ("29.36", "28.12"),
        10: ("28.88", "27.77"),
        30: ("27.96", "27.12"),
        50: ("27.31", "26.73"),
    },
    "books": {
        0: ("147.71", "133.02"),
        5: ("142.30", "128.78"),
        10: ("139.49", "127.05"),
        30: ("134.30", "122.22"),
        50: ("131.25", "119.93"),
        75: ("128.46", ""),
        100: ("126.51", ""),
        150: ("123.53", ""),
        200: ("121.40", ""),
    },
}


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    chosen = SCALES[scale]
    # The text that rates are chosen on.
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
                    "document_tokens": tokens_behind_cache(scale, text),
                }
                made.append(Run(named("cache", text), measure_cache, settings, seed, (plain.name,)))
    return made


def tokens_behind_cache(scale: str, text: str) -> int:
    """Tokens of a document that are read behind a cache."""
    limit = SCALES[scale].texts[text].limits.get("document_tokens", READ_WITH_CACHE)
    return min(limit, READ_WITH_CACHE)


def arms(scale: str) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """Kind, window, overlap of the training, overlaps it is read at."""
    chosen = SCALES[scale]
    plain = [
        ("plain", chosen.window, 0, chosen.plain_overlaps),
        ("plain", chosen.positions, 0, (0,)),
    ]
    recurrent = [("recurrent", chosen.window, overlap, (overlap,)) for overlap in chosen.overlaps]
    most = chosen.overlaps[-1]
    alike = [("plain", chosen.window, most, (most,))] if scale in TRAINED_ALIKE else []
    return plain + recurrent + alike


def named(kind: str, text: str, overlap: int = 0, full: bool = False) -> str:
    if kind == "plain" and overlap:
        return f"plain {text} trained at overlap {overlap}"
    if kind in ("plain", "cache", STOCK):
        return f"{kind} {text}{' all positions' if full else ''}"
    return f"recurrent {text} overlap {overlap}"


def carry(kind: str, window: int, overlap: int) -> dict[str, Any]:
    return {
        "carry": "none" if kind == "plain" else "pooled",
        "window": window,
        "overlap": overlap,
    }


def try_rate(work: Work) -> dict[str, Any]:
    settings = work.settings
    model = train(work, text_of(work), settings["rate"], settings["recurrence"])
    return {"valid_loss": last_validation(model.parent)}


def last_validation(run: Path) -> float:
    """Of the weights that are scored."""
    *_, last = [line["valid_loss"] for line in log_of(run) if "valid_loss" in line]
    return last


def measure(work: Work) -> dict[str, Any]:
    settings = work.settings
    tried = [one["valid_loss"] for one in work.found.values()]
    rate = settings["rates"][tried.index(min(tried))]
    model = train(work, text_of(work), rate, settings["recurrence"])
    work.read(read_run(model / RUN)["data"]["training"])
    return {"learning_rate": rate, **read_at(work, model)}


def measure_stock(work: Work) -> dict[str, Any]:
    overlaps = list(work.settings["overlaps"])
    record = read_stock(work, text_of(work), window=work.settings["window"], overlap=overlaps)
    return at_overlaps(work, record)


def measure_cache(work: Work) -> dict[str, Any]:
    """The trained plain model behind caches of several sizes, on the beginning of every document."""
    settings, text = work.settings, text_of(work)
    (plain,) = work.found.values()
    # Taken over from the plain arm where that is still there.
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
            found = read_with_cache(backbone, tokens, window, kept, rows=32, first=first)
        over = f"{tokens.documents} documents"
        measures[behind(first, kept)] = ratio(found.nats, found.tokens, over)
    return measures


def behind(first: int, kept: int) -> str:
    """The loss behind a cache of those tokens."""
    return f"loss@first {first}, last {kept}"


def read_at(work: Work, model: Any) -> dict[str, Any]:
    """Measures at every overlap, and of every window as a text of its own."""
    text = text_of(work)
    measures = at_overlaps(work, read(work, model, text, overlap=list(work.settings["overlaps"])))
    if work.settings["recurrence"]["carry"] != "none":
        alone = read(work, model, text, "alone", overlap=[0], carry=1, diagnose_state=False)
        measures["single_window_loss"] = of_evaluation(alone)["loss"]
    return measures


def at_overlaps(work: Work, record: Mapping[str, Any]) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    for number, overlap in enumerate(work.settings["overlaps"]):
        part = scored(record, text_of(work), number)
        measures |= {f"{name}@{overlap}": value for name, value in part.items()}
    if "loss@0" in measures:
        # Without a state every window is alone.
        measures["single_window_loss"] = measures["loss@0"]
    return measures


def layout(scale: str) -> Layout:
    texts = list(SCALES[scale].texts)
    return Layout(
        done=done(scale),
        claims=[claim for claim in claims(scale) if claim.expects],
        tables=[
            rates_table(scale),
            *(one for text in texts for one in (table(scale, text), single_windows(scale, text))),
            *([cache_table(scale, text) for text in texts] if scale in KEPT else []),
        ],
        figures=[figure(scale, text) for text in texts],
        threats=Threats(
            internal=[
                "Plain and recurrent models make as many steps of as many windows, at the learning rate "
                "that was best for each kind on the same list (one seed, the last validation), tried on "
                "one text and used on all, as the authors did: on another text it need not be the best. "
                "A recurrent model is trained at its own overlap: of what it reads, that part was read "
                "before.",
                "Windows of all positions make as many steps of about as many tokens.",
            ],
            construct=[
                "Perplexity a word divides by the words of the text as the tokenizer was given it, on "
                "WikiText by those and the ends of lines, which the papers count as words; "
                "FLOPs are the formula of the paper, which counts the state as nothing."
            ],
            external=[
                *threats_of_texts(scale),
                *([] if scale in KEPT else ["No sliding cache: positions are learnt, not rotary."]),
            ],
        ),
    )


def claims(scale: str) -> list[Claim]:
    chosen = SCALES[scale]
    texts = list(chosen.texts)
    # What the authors say of overlaps that differ, they say of PG-19.
    books = [text for text in texts if text != "wikitext"]
    few, most = chosen.overlaps[1], chosen.overlaps[-1]
    middle = most if scale == "smoke" else 30
    farther = [overlap for overlap in (50, 75) if overlap in chosen.plain_overlaps]
    return [
        Claim(
            "With a carried state, perplexity is lower than without at every overlap.",
            "Tables 1 and 2",
            [
                Expectation(difference(text, overlap), "below", said=f"{text}, overlap {overlap}")
                for text in texts
                for overlap in chosen.overlaps
            ],
        ),
        Claim(
            f"Trained at overlap {most} both, a model with a carried state is better than one without.",
            "our question",
            [
                Expectation(trained_alike(text, most), "below", said=text)
                for text in (texts if scale in TRAINED_ALIKE else ())
            ],
            ours=True,
        ),
        Claim(
            f"The recurrent model without overlap is as good as the plain one at overlap {middle}, "
            f"or not more than {ALIKE} nats a token worse.",
            "section 5.1, of PG-19",
            [Expectation(against(text, 0, middle), "below", ALIKE, text) for text in books],
        ),
        Claim(
            f"The recurrent model at overlap {few} is better than the plain one at 50 and even at 75.",
            "section 5.1, of PG-19; at 75 its Table 2 has 128.78 against 128.46",
            [
                Expectation(against(text, few, overlap), "below", said=f"{text}, {overlap}")
                for text in books
                for overlap in farther
            ],
        ),
        Claim(
            "The recurrent model at its largest overlap is better than the plain one at the "
            "largest of all, which costs more.",
            "Table 2: overlap 50 against 200, at 0.40 of the FLOPs",
            [
                Expectation(against(text, most, chosen.plain_overlaps[-1]), "below", said=text)
                for text in books
            ],
        ),
        Claim(
            "Training lowers the loss of the model as it was, windows read without overlap.",
            "a check",
            [
                Expectation(
                    Value("loss@0", named(kind, text), named(STOCK, text), "{:+.4f}"),
                    "below",
                    said=f"{text}, {kind}",
                )
                for text in (texts if has_stock(scale) else ())
                for kind in KINDS
            ],
            ours=True,
        ),
    ]


def difference(text: str, overlap: int) -> Value:
    return Value(
        f"loss@{overlap}", named("recurrent", text, overlap), named("plain", text), "{:+.4f}"
    )


def trained_alike(text: str, overlap: int) -> Value:
    """A state's part in the difference, the other being what training at an overlap does."""
    return Value(
        f"loss@{overlap}",
        named("recurrent", text, overlap),
        named("plain", text, overlap),
        "{:+.4f}",
    )


def against(text: str, overlap: int, plain_overlap: int) -> Value:
    return Value(
        f"loss@{overlap}",
        named("recurrent", text, overlap),
        named("plain", text),
        "{:+.4f}",
        f"loss@{plain_overlap}",
    )


def rates_table(scale: str) -> Table:
    *_, first = SCALES[scale].texts
    return Table(
        f"Learning rates, tried on {first}",
        ("rate", *KINDS),
        [
            [
                f"{rate:g}",
                *(Value("valid_loss", f"rate {rate:g} {kind}", form="{:.4f}") for kind in KINDS),
            ]
            for rate in SCALES[scale].rates
        ],
        "Validation loss at the end, nats a token, one seed. The rate of the lowest is used for that "
        "kind on every text; what is added learns ten times as fast. Where that is an end of the list, "
        "a better one may lie beyond it.",
    )


def counted_in(scale: str, text: str) -> str:
    lines = SCALES[scale].texts[text].denominator == "perplexity_per_word_and_line"
    return "Perplexity a word or end of line" if lines else "Perplexity a word"


def table(scale: str, text: str) -> Table:
    chosen, rows = SCALES[scale], []
    stock = named(STOCK, text)
    for overlap in chosen.plain_overlaps:
        printed = PUBLISHED.get(text, {}).get(overlap, ("", ""))
        recurrent = overlap in chosen.overlaps
        rows.append(
            [
                str(overlap),
                *([Value(f"perplexity@{overlap}", stock)] if has_stock(scale) else []),
                Value(f"perplexity@{overlap}", named("plain", text)),
                Value(f"perplexity@{overlap}", named("recurrent", text, overlap))
                if recurrent
                else "",
                difference(text, overlap) if recurrent else "",
                Value(f"flops_per_token@{overlap}", named("plain", text), form="{:.3g}"),
                *map(Published, printed),
            ]
        )
    if scale in TRAINED_ALIKE:
        most = chosen.overlaps[-1]
        rows.append(
            [
                f"{most}, plain trained at it too",
                *([""] if has_stock(scale) else []),
                Value(f"perplexity@{most}", named("plain", text, most)),
                Value(f"perplexity@{most}", named("recurrent", text, most)),
                trained_alike(text, most),
                Value(f"flops_per_token@{most}", named("plain", text, most), form="{:.3g}"),
                "",
                "",
            ]
        )
    full = named("plain", text, full=True)
    rows.append(
        [
            f"none, windows of all {chosen.positions:,} positions",
            *([""] if has_stock(scale) else []),
            Value("perplexity@0", full),
            "",
            "",
            Value("flops_per_token@0", full, form="{:.3g}"),
            "",
            "",
        ]
    )
    return Table(
        f"{counted_in(scale, text)} on {text}",
        [
            "overlap",
            *([STOCK] if has_stock(scale) else []),
            "plain",
            "recurrent",
            "nats a token",
            "FLOPs a token",
            "paper, plain",
            "paper, recurrent",
        ],
        rows,
        "Nats a token: recurrent minus plain, of the seeds that both have, paired; below zero the state "
        "helps. As it was: the model before it was trained here. Compare sizes too, not signs alone: "
        "without overlap the paper's state lowers perplexity by 10 % on PG-19, by 5 % on WikiText-103.",
    )


def single_windows(scale: str, text: str) -> Table:
    """What training did to texts of a single window, where nothing is carried."""
    plain = named("plain", text)
    rows: list[list[Cell]] = [["plain", Value("single_window_loss", plain, form="{:.4f}"), ""]]
    if has_stock(scale):
        stock = named(STOCK, text)
        its = Value("single_window_loss", stock, form="{:.4f}")
        rows.insert(0, [STOCK, its, Value("single_window_loss", stock, plain, "{:+.4f}")])
    for overlap in SCALES[scale].overlaps:
        arm = named("recurrent", text, overlap)
        rows.append(
            [
                f"recurrent, overlap {overlap}",
                Value("single_window_loss", arm, form="{:.4f}"),
                Value("single_window_loss", arm, plain, "{:+.4f}"),
            ]
        )
    return Table(
        f"Texts of one window: {text}",
        ("model", "nats a token", "above plain"),
        rows,
        "Every window of the test text as if nothing stood in front of it.",
    )


def cache_table(scale: str, text: str) -> Table:
    """What the plain model gains by keys and values that it keeps."""
    arm = named("cache", text)
    alone = behind(0, 0)
    rows: list[list[Cell]] = []
    for kept in KEPT[scale]:
        row: list[Cell] = [str(kept)]
        for first in (0, FIRST):
            metric = behind(first, kept)
            gained = Value(metric, arm, arm, "{:+.4f}", alone) if metric != alone else ""
            row += [Value(metric, arm, form="{:.4f}"), gained]
        rows.append(row)
    limit = SCALES[scale].texts[text].limits.get("document_tokens")
    if limit == tokens_behind_cache(scale, text):
        recurrent, plain = named("recurrent", text), named("plain", text)
        beside = Value("loss@0", recurrent, form="{:.4f}"), difference(text, 0)
        rows += [["none, plain", Value("loss@0", plain, form="{:.4f}"), "", "", ""]]
        rows += [["none, a carried state", *beside, "", ""]]
    return Table(
        f"Behind a sliding cache: {text}",
        (
            "last tokens kept",
            "nats a token",
            "above none",
            f"with the first {FIRST} of the text",
            "above none",
        ),
        rows,
        "A plain model, trained as the plain arm, keeps the keys and values of the last tokens of a "
        "window, on the first "
        f"{tokens_behind_cache(scale, text):,} tokens of each document; then also those of the "
        "document's first tokens, on which deep models rest their attention (Xiao et al., Efficient "
        "Streaming Language Models with Attention Sinks). Those of a single token take more memory than "
        "a state of one embedding, in all layers together.",
    )


def figure(scale: str, text: str) -> Figure:
    chosen = SCALES[scale]
    plain, name = named("plain", text), named
    return Figure(
        f"What a perplexity costs: {text}",
        "FLOPs a token",
        counted_in(scale, text),
        [
            Series(
                "plain",
                [
                    (Value(f"flops_per_token@{o}", plain), Value(f"perplexity@{o}", plain))
                    for o in chosen.plain_overlaps
                ],
                [str(o) for o in chosen.plain_overlaps],
            ),
            Series(
                "recurrent",
                [
                    (
                        Value(f"flops_per_token@{o}", name("recurrent", text, o)),
                        Value(f"perplexity@{o}", name("recurrent", text, o)),
                    )
                    for o in chosen.overlaps
                ],
            ),
        ],
        "At the plain model's points: the overlap; the recurrent ones' are its first. Differences are "
        "known more closely than the bars suggest: they are paired (see the table).",
    )


EXPERIMENT = Experiment(
    title="Overlap: plain against recurrent",
    question="Windows may overlap, so that a model reads some tokens again and knows more when it goes "
    "on. Is a carried state worth that, and what does each cost?",
    source="Yoshida, Ettinger, Gimpel: Adding Recurrence to Pretrained Transformers, Tables 1 and 2",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0, 1), "small": (0, 1, 2), "real": (0,), "paper": (0,)},
)
