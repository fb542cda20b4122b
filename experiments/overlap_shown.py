"""The layout of the overlap experiment: claims, tables, figures, threats to validity."""

from language import SCALES, STOCK, done, has_stock, middle_rate, threats_of_texts
from overlap_arms import (
    FIRST,
    KEPT,
    KINDS,
    TRAINED_ALIKE,
    cached_loss,
    named,
    tokens_with_cache,
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

# Nats per token within which two models count as equally good.
ALIKE = 0.005
MODELS = {
    "smoke": "A tiny model",
    "small": "The package's small GPT-2",
    "real": "SmolLM2-135M",
    "paper": "GPT-2 small",
}
# Perplexity per word on the test splits of WikiText-103 and PG-19: overlap, plain, recurrent.
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
                "Plain and recurrent models are trained for the same number of steps and windows. "
                "The learning rate is the best for each kind on the same list (one seed, the last "
                "validation). As the authors did, it was tried on one text and used on all; on "
                "another text it may not be the best. The experiment on what the state is made of "
                "uses "
                f"{middle_rate(scale):g}"
                + (", where losses on books are lower." if scale in ("small", "real") else "."),
                "A recurrent model is trained at its own overlap, so in the same number of steps "
                "it sees fewer new tokens. The plain model is trained without overlap and "
                "evaluated at all overlaps. "
                + (
                    "The effect of this alone is the difference between the two plain models "
                    "evaluated "
                    f"at overlap {SCALES[scale].overlaps[-1]}."
                    if scale in TRAINED_ALIKE
                    else "The effect of this alone was not measured at this scale: beyond overlap 0, "
                    "claims compare more than a state."
                ),
                "Models with windows of all positions take the same number of steps with about as "
                "many tokens.",
            ],
            construct=[
                "Perplexity per word divides by the words of the text before tokenization; on "
                "WikiText line ends count as words, as in the papers. FLOPs follow the paper's "
                "formula, which ignores the cost of the state."
            ],
            external=[
                *threats_of_texts(scale),
                *(
                    []
                    if scale in KEPT
                    else ["No sliding cache: the positions are learnt, not rotary."]
                ),
            ],
        ),
    )


def answer(scale: str, text: str) -> Answer:
    chosen, plain = SCALES[scale], named("plain", text)
    most = chosen.overlaps[-1]
    return Answer(
        f"{MODELS[scale]} on {text}, windows of {chosen.window} tokens: the published state {{}}; "
        f"an overlap of {most} tokens {{}}; both {{}}.",
        [
            difference(text, 0),
            Value(f"loss@{most}", plain, plain, "{:+.4f}", "loss@0"),
            Value(f"loss@{most}", named("recurrent", text, most), plain, "{:+.4f}", "loss@0"),
        ],
    )


def claims(scale: str) -> list[Claim]:
    chosen = SCALES[scale]
    texts = list(chosen.texts)
    # The authors compare different overlaps only on PG-19.
    books = [text for text in texts if text != "wikitext"]
    few, most = chosen.overlaps[1], chosen.overlaps[-1]
    middle = most if scale == "smoke" else 30
    farther = [overlap for overlap in (50, 75) if overlap in chosen.plain_overlaps]
    return [
        Claim(
            "At every overlap, perplexity is lower with a carried state than without.",
            "Tables 1 and 2",
            [
                Expectation(difference(text, overlap), "below", said=f"{text}, overlap {overlap}")
                for text in texts
                for overlap in chosen.overlaps
            ],
        ),
        Claim(
            f"If both are trained at overlap {most}, a model with a carried state is better than "
            "one without.",
            "our question",
            [
                Expectation(trained_alike(text, most), "below", said=text)
                for text in (texts if scale in TRAINED_ALIKE else ())
            ],
            ours=True,
        ),
        Claim(
            f"The recurrent model without overlap is as good as the plain one at overlap {middle}, "
            f"or at most {ALIKE} nats per token worse.",
            "section 5.1, on PG-19",
            [Expectation(against(text, 0, middle), "below", ALIKE, text) for text in books],
        ),
        Claim(
            f"The recurrent model at overlap {few} is better than the plain one at 50 and even at "
            "75.",
            "section 5.1, on PG-19; at 75 its Table 2 has 128.78 against 128.46",
            [
                Expectation(against(text, few, overlap), "below", said=f"{text}, {overlap}")
                for text in books
                for overlap in farther
            ],
        ),
        Claim(
            "The recurrent model at its largest overlap is better than the plain one at an even "
            "larger overlap, which costs more.",
            "Table 2: overlap 50 against 200, at 0.40 of the FLOPs",
            [
                Expectation(against(text, most, chosen.plain_overlaps[-1]), "below", said=text)
                for text in books
            ],
        ),
        Claim(
            "Training lowers the loss of the original model, in windows without overlap.",
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
    """How much the loss of a recurrent model rises when its state is removed."""
    return Value(f"state_zeroed@{overlap}", named("recurrent", text, overlap), form="{:+.4f}")


def trained_alike(text: str, overlap: int) -> Value:
    """The effect of the state alone: both models were trained at this overlap."""
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
        "Validation loss at the end, nats per token, one seed. Each kind uses its best rate on "
        "every text; added weights learn ten times as fast. If the best rate is at an end of the "
        "list, a better one may lie beyond it.",
    )


def counted_in(scale: str, text: str) -> str:
    lines = SCALES[scale].texts[text].denominator == "perplexity_per_word_and_line"
    return "Perplexity per word or line end" if lines else "Perplexity per word"


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
                f"{most}, both trained at it",
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
            "nats per token",
            "state removed",
            "paper, plain",
            "paper, recurrent",
            "FLOPs per token",
        ],
        rows,
        "Nats per token: recurrent minus plain, paired, over the seeds that both have; negative "
        "means the recurrent model is better. State removed: how much the loss of the same model "
        "rises without the state, on up to 400 windows. As it was: the model before training here. "
        "Both trained at it: the plain model was trained at that overlap, too. Last row: all "
        "positions of the model, without overlap. Compare sizes, not only signs: without overlap "
        "the paper's state lowers perplexity by 10 % on PG-19 and by 5 % on WikiText-103.",
    )


def single_windows(scale: str, text: str) -> Table:
    """The effect of training on texts of a single window, which need no state."""
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
        ("model", "nats per token", "above plain"),
        rows,
        "Every window of the test text is read without any earlier text.",
    )


def cache_table(scale: str, text: str) -> Table:
    """The gain of the plain model from keeping keys and values."""
    arm = named("cache", text)
    alone = cached_loss(0, 0)
    rows: list[list[Cell]] = []
    for kept in KEPT[scale]:
        row: list[Cell] = [str(kept)]
        for first in (0, FIRST):
            metric = cached_loss(first, kept)
            gained = Value(metric, arm, arm, "{:+.4f}", alone) if metric != alone else ""
            row += [Value(metric, arm, form="{:.4f}"), gained]
        rows.append(row)
    limit = SCALES[scale].texts[text].limits.get("document_tokens")
    if limit == tokens_with_cache(scale, text):
        recurrent, plain = named("recurrent", text), named("plain", text)
        with_state = Value("loss@0", recurrent, form="{:.4f}"), difference(text, 0)
        rows += [["none, plain", Value("loss@0", plain, form="{:.4f}"), "", "", ""]]
        rows += [["none, a carried state", *with_state, "", ""]]
    rows.append(
        ["bytes per token kept", Value("cache_bytes_a_token", arm, form="{:,.0f}"), "", "", ""]
    )
    return Table(
        f"Plain model with a sliding cache: {text}",
        (
            "last tokens kept",
            "nats per token",
            "above no cache",
            f"with the first {FIRST} of the text",
            "above no cache",
        ),
        rows,
        "A plain model, trained like the plain arm, keeps the keys and values of the last tokens "
        "of a "
        f"window; scored on the first {tokens_with_cache(scale, text):,} tokens of each document. "
        "Then it also keeps the document's first tokens, which deep models use as attention sinks "
        "(Xiao et al., Efficient Streaming Language Models with Attention Sinks). The keys and "
        "values of one token at all layers take more bytes than a state of one embedding.",
    )


def figure(scale: str, text: str) -> Figure:
    chosen = SCALES[scale]
    plain, name = named("plain", text), named
    return Figure(
        f"Perplexity against its cost: {text}",
        "FLOPs per token",
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
        "The labels are the overlaps of the plain model; the recurrent model has the first of "
        "them. Differences are known more precisely than the bars suggest: they are paired (see "
        "the table).",
    )
