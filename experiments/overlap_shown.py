"""What of the overlap experiment's records is shown: claims, tables, figures, threats to validity."""

from language import SCALES, STOCK, done, has_stock, middle_rate, threats_of_texts
from overlap_arms import (
    FIRST,
    KEPT,
    KINDS,
    TRAINED_ALIKE,
    behind,
    named,
    tokens_behind_cache,
)

from holdover.experiments.definition import (
    Answer,
    Cell,
    Claim,
    Expectation,
    Figure,
    Layout,
    Published,
    Series,
    Table,
    Threats,
    Value,
)

# Nats a token within which two models count as equally good.
ALIKE = 0.005
SCALES_SAID = {
    "smoke": "A tiny model",
    "small": "The package's small GPT-2",
    "real": "SmolLM2-135M",
    "paper": "GPT-2 small",
}
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


def layout(scale: str) -> Layout:
    texts = list(SCALES[scale].texts)
    return Layout(
        done=done(scale),
        answers=[answer(scale, text) for text in texts],
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
                f"What the state is made of is asked at {middle_rate(scale):g}"
                + (", where losses on books are lower." if scale in ("small", "real") else "."),
                "A recurrent model is trained at its own overlap, so that in as many steps it learns "
                "from fewer new tokens; the plain one is trained without, and read at all overlaps. "
                + (
                    "What that alone does is the difference between the two plain models that are read "
                    f"at {SCALES[scale].overlaps[-1]}."
                    if scale in TRAINED_ALIKE
                    else "What that alone does was not measured at this scale: beyond overlap 0, claims "
                    "compare more than a state."
                ),
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


def answer(scale: str, text: str) -> Answer:
    chosen, plain = SCALES[scale], named("plain", text)
    most = chosen.overlaps[-1]
    return Answer(
        f"{SCALES_SAID[scale]} on {text}, windows of {chosen.window} tokens: the published state {{}}; "
        f"reading {most} tokens again {{}}; both {{}}.",
        [
            difference(text, 0),
            Value(f"loss@{most}", plain, plain, "{:+.4f}", "loss@0"),
            Value(f"loss@{most}", named("recurrent", text, most), plain, "{:+.4f}", "loss@0"),
        ],
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


def taken_away(text: str, overlap: int) -> Value:
    """What a recurrent model loses without its state."""
    return Value(f"state_zeroed@{overlap}", named("recurrent", text, overlap), form="{:+.4f}")


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
                taken_away(text, overlap) if recurrent else "",
                *map(Published, printed),
                Value(f"flops_per_token@{overlap}", named("plain", text), form="{:.3g}"),
            ]
        )
    if scale in TRAINED_ALIKE:
        most = chosen.overlaps[-1]
        rows.append(
            [
                f"{most}, trained alike",
                *([""] if has_stock(scale) else []),
                Value(f"perplexity@{most}", named("plain", text, most)),
                Value(f"perplexity@{most}", named("recurrent", text, most)),
                trained_alike(text, most),
                *("",) * 3,
                Value(f"flops_per_token@{most}", named("plain", text, most), form="{:.3g}"),
            ]
        )
    full = named("plain", text, full=True)
    rows.append(
        [
            f"windows of {chosen.positions:,}",
            *([""] if has_stock(scale) else []),
            Value("perplexity@0", full),
            *("",) * 5,
            Value("flops_per_token@0", full, form="{:.3g}"),
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
            "without its state",
            "paper, plain",
            "paper, recurrent",
            "FLOPs a token",
        ],
        rows,
        "Nats a token: recurrent minus plain, of the seeds that both have, paired; below zero the "
        "recurrent model is better. Whether by its state, the next column says: what the same model "
        "loses without it, on up to 400 windows. As it was: the model before it was trained here. "
        "Trained alike: the plain model too at that overlap. The last row: all positions of the model, "
        "without overlap. Compare sizes too, not signs alone: without overlap the paper's state lowers "
        "perplexity by 10 % on PG-19, by 5 % on WikiText-103.",
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
    rows.append(
        ["bytes a token kept", Value("cache_bytes_a_token", arm, form="{:,.0f}"), "", "", ""]
    )
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
        "Streaming Language Models with Attention Sinks). Even one token's, of all layers, are more "
        "bytes than a state of one embedding.",
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
