"""Section 5.3 of the method: is a topic carried into the next window, and what is lost at its end?

    holdover run experiments/propagation.py --scale small
    holdover run experiments/propagation.py --scale paper     trains GPT-2 first, plain and as published

A context of one window is read; the next window begins with the one token that follows it, and 30 more
are written greedily: by the recurrent model with the state of the context, by the plain one without, and
by the recurrent one with the state of another context. The book's own 30 tokens stand beside them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import language
import numpy as np
import torch
from continuity import RATES, rates
from topics import Topics, divergence

from holdover.experiments.definition import (
    Answer,
    Claim,
    Expectation,
    Experiment,
    Layout,
    Published,
    Run,
    Samples,
    Table,
    Threats,
    Value,
)
from holdover.experiments.measures import ratio
from holdover.experiments.run_context import RunContext, last_checkpoint
from holdover.runs.models import RUN, model_folder, open_model, read_run
from holdover.runs.settings import build
from holdover.text.options import TextOptions
from holdover.text.splits import read_text
from holdover.tokenization.encoders import encoder_of

WRITTEN = 30
SHOWN = 5
BOOK, PLAIN, STATE, OTHER = "the book itself", "plain", "recurrent", "another state"
ARMS = (BOOK, PLAIN, STATE, OTHER)
FILE = "continuations.json"


@dataclass(frozen=True)
class Scale:
    plain: str
    recurrent: str
    text: str
    window: int
    contexts: int
    pieces: int  # of the training text, of so many tokens, that topics are fitted on
    rows: int


SCALES = {
    "smoke": Scale("books-plain", "books-recurrent", "time-machine", 300, 4, 40, 4),
    "small": Scale("books-plain", "books-recurrent", "pg19", 300, 2000, 20_000, 100),
    "paper": Scale("trained plain", "trained recurrent", "pg19", 300, 2000, 20_000, 100),
}
# Scales whose models are trained here first, by their names, with what they carry; those of others come
# with the package, and the one with a state has memory tokens.
TRAINED: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {"trained plain": {"carry": "none"}, "trained recurrent": {"carry": "pooled"}}
}
# Of a piece of the training text.
PIECE = 1000


def runs(scale: str, seeds: Sequence[int]) -> list[Run]:
    settings = {"scale": scale, **vars(SCALES[scale])}
    found = []
    for seed in seeds:
        trained = [
            Run(name, learn, to_learn(scale, carried), seed)
            for name, carried in TRAINED.get(scale, {}).items()
        ]
        models = tuple(run.name for run in trained)
        plain = Run(PLAIN, measure, {**settings, "arm": PLAIN}, seed, models)
        found += [*trained, plain]
        for arm in (BOOK, STATE, OTHER):
            after = (plain.name, *models)
            found.append(Run(arm, measure, {**settings, "arm": arm}, seed, after))
    return found


def to_learn(scale: str, carried: dict[str, Any]) -> dict[str, Any]:
    window = SCALES[scale].window
    return {
        **language.common(scale, window),
        "text": next(iter(language.SCALES[scale].texts)),
        "rate": language.middle_rate(scale),
        "recurrence": {"window": window, **carried},
    }


def learn(work: RunContext) -> dict[str, Any]:
    settings, text = work.settings, language.text_of(work)
    model = language.train(work, text, settings["rate"], settings["recurrence"])
    work.read(read_run(model / RUN)["data"]["training"])
    return {"valid_loss": language.last_validation(model.parent)}


def model_of(work: RunContext, name: str) -> str:
    """The end of its training, where it was trained here."""
    folder = work.others.get(Run(name, learn, {}, work.seed).name)
    return model_folder(name) if folder is None else str(last_checkpoint(folder / "train"))


def measure(work: RunContext) -> dict[str, Any]:
    chosen = SCALES[work.settings["scale"]]
    arm = work.settings["arm"]
    model = model_of(work, chosen.plain if arm in (PLAIN, BOOK) else chosen.recurrent)
    encoder = encoder_of(model)
    read = {"data": chosen.text, **{k: v for k, v in work.common.items() if k != "device"}}
    options = build(TextOptions, read)
    test = read_text(options, encoder, "valid", window=chosen.window, console=work.console)
    train = read_text(options, encoder, "train", window=chosen.window, console=work.console)
    work.read(test.about)
    places = drawn(test, chosen, work.seed)
    ids = torch.from_numpy(
        np.stack([test.ids[at : at + needed(chosen)].astype(np.int64) for at, _ in places])
    )
    contexts = [text_of(encoder, row) for row in ids[:, : chosen.window].tolist()]
    written = write(work, model, ids, chosen, arm)
    texts = [text_of(encoder, row) for row in written.tolist()]
    topics = Topics(pieces(train, encoder, chosen, work.seed), work.seed)
    apart = divergence(topics.of(contexts), topics.of(texts))
    (work.folder / FILE).write_text(json.dumps({"divergence": apart.tolist()}))
    # Every book that is long enough has its place, drawn or not, so that seeds can be put together.
    long = np.flatnonzero(long_enough(test, chosen))
    books = np.searchsorted(long, [book for _, book in places]).tolist()
    counts = np.bincount(books, minlength=len(long))
    divergences = over_books(np.bincount(books, apart, len(long)).tolist(), counts.tolist())
    found: dict[str, Any] = {"divergence": divergences}
    for rate, parts in rates(contexts, texts, books, len(long)).items():
        # Few texts may leave nothing to tell.
        if sum(parts["counts"]):
            found[rate] = over_books(parts["sums"], parts["counts"])
        found[told_in(rate)] = sum(parts["counts"])
    if arm != PLAIN:
        folder = work.others[Run(PLAIN, measure, {}, work.seed).name]
        plain = np.array(json.loads((folder / FILE).read_text())["divergence"])
        found |= sign_test(apart, plain, np.array(books), len(long))
    # With the one token of the next window that is given: a word may end in it.
    given = [text_of(encoder, row) for row in ids[:SHOWN, : chosen.window + 1].tolist()]
    found["notes"] = [
        {"context": f"... {context[-200:]}", "continuation": text}
        for context, text in zip(given, texts[:SHOWN], strict=True)
    ]
    return found


def told_in(rate: str) -> str:
    """The measure that counts the contexts in which a rate can be told."""
    return f"{rate}_contexts"


def drawn(tokens: Any, chosen: Scale, seed: int) -> list[tuple[int, int]]:
    """Where contexts begin, and in which document: the same for every arm."""
    random = np.random.default_rng(seed)
    long = np.flatnonzero(long_enough(tokens, chosen))
    found = []
    for document in random.choice(long, chosen.contexts):
        start, stop = tokens.bounds[document : document + 2]
        found.append((int(random.integers(start, stop - needed(chosen))), int(document)))
    return found


def needed(chosen: Scale) -> int:
    """Tokens of a context, the one that is given behind it, and the book's own continuation."""
    return chosen.window + 1 + WRITTEN


def long_enough(tokens: Any, chosen: Scale) -> np.ndarray:
    return tokens.lengths() > needed(chosen)


def pieces(tokens: Any, encoder: Any, chosen: Scale, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    last = max(len(tokens) - PIECE, 1)
    starts = random.integers(0, last, min(chosen.pieces, max(len(tokens) // PIECE, 2)))
    return [text_of(encoder, tokens.ids[at : at + PIECE].tolist()) for at in starts]


def text_of(encoder: Any, ids: Sequence[int]) -> str:
    """A part may begin or end within a character."""
    return encoder.decode(ids).decode("utf-8", errors="replace")


@torch.no_grad()
def write(work: RunContext, name: str, ids: torch.Tensor, chosen: Scale, arm: str) -> torch.Tensor:
    """[contexts, WRITTEN] what an arm goes on with behind the first token of the next window."""
    first = chosen.window
    if arm == BOOK:
        return ids[:, first + 1 :]
    device = work.device
    model = open_model(name).to(device).eval()
    given = ids.to(device)
    # Of another context: the one before it, which is of another place or book.
    read = given.roll(1, 0) if arm == OTHER else given
    parts = []
    for at in range(0, len(ids), chosen.rows):
        part = slice(at, at + chosen.rows)
        state = None if arm == PLAIN else model(read[part, :first]).state
        out = model.generate(
            given[part, first : first + 1],
            **({} if state is None else {"state": state}),
            max_new_tokens=WRITTEN,
            do_sample=False,
            eos_token_id=None,
        )
        parts.append(out[:, 1:].cpu())
    return torch.cat(parts)


def over_books(sums: Sequence[float], counts: Sequence[float]) -> dict[str, Any]:
    return ratio(sums, counts, f"{len(sums)} books, {int(sum(counts))} contexts")


def sign_test(ours: np.ndarray, plain: np.ndarray, books: np.ndarray, count: int) -> dict[str, Any]:
    """How often a continuation lies nearer to its context than the plain model's: of contexts, as the
    authors count, and of books, since contexts of one book are not independent."""
    differing, nearer = ours != plain, ours < plain
    if not differing.any():
        return {}
    counts = np.bincount(books, differing, count)
    sums = np.bincount(books, nearer, count)
    mostly = (2 * sums > counts).sum(), (2 * sums < counts).sum()
    return {
        "nearer_than_plain": over_books(sums.tolist(), counts.tolist()),
        "sign_test_p": chance_of(int(nearer.sum()), int((differing & ~nearer).sum())),
        "sign_test_p_books": chance_of(*map(int, mostly)),
    }


def chance_of(nearer: int, farther: int) -> float:
    """That so many or more lie on one side, were both alike."""
    from scipy.stats import binomtest

    return float(binomtest(nearer, nearer + farther).pvalue) if nearer + farther else 1.0


def layout(scale: str) -> Layout:
    ours = scale not in TRAINED
    state, its = ("memory tokens", ", of its pooled state") if ours else ("a carried state", "")
    return Layout(
        done=done(scale),
        answers=[
            Answer(
                "With the memory of the window before, a name in the next window's continuation is one "
                "from that window in {} of those that can be told, without {}, in the book itself {}; "
                "topics lie {} bits from their context's (without: {}).",
                [
                    *(share_of(scale, "names_known", arm) for arm in (STATE, PLAIN, BOOK)),
                    *(topic_distance(scale, arm) for arm in (STATE, PLAIN)),
                ],
            )
        ],
        claims=[
            Claim(
                f"Continuations with {state} are nearer in topic to their context.",
                f"section 5.3.1{its}: 0.5331 against 0.5951",
                [
                    Expectation(topic_distance(scale, STATE, PLAIN), "below", said="divergence"),
                    Expectation(
                        topic_distance(scale, STATE, OTHER),
                        "below",
                        said="with its own state, not another's",
                    ),
                ],
                ours=ours,
            ),
            Claim(
                f"With {state} they are nearer than without for at least 60 % of contexts.",
                f"section 5.3.1{its}",
                [
                    Expectation(
                        share_of(scale, "nearer_than_plain", STATE), "above", 0.6, said="share"
                    )
                ],
                ours=ours,
            ),
            Claim(
                f"With {state} pronouns reflect the characters of the window before.",
                f"section 5.3{its}",
                [
                    Expectation(
                        share_of(scale, "pronoun_fits", STATE, other),
                        "above",
                        said=f"above {other}",
                    )
                    for other in (PLAIN, OTHER)
                ],
                ours=ours,
            ),
        ],
        tables=[
            Table(
                "Topics",
                (
                    "continued by",
                    "divergence (bits)",
                    "nearer than plain",
                    "paper",
                ),
                [
                    [
                        arm,
                        topic_distance(scale, arm),
                        "" if arm == PLAIN else share_of(scale, "nearer_than_plain", arm),
                        Published({PLAIN: "0.5951", STATE: "0.5331"}.get(arm, "")),
                    ]
                    for arm in ARMS
                ],
                "Jensen-Shannon divergence of the topics of a context and of its continuation; whether "
                "the paper's is this or its square root, in bits or nats, it does not say."
                + " The paper's model carries a pooled state, ours memory tokens."
                * ours,
            ),
            Table(
                "Signs: whether nearer than plain is more than chance",
                ("continued by", "p over contexts", "p over books"),
                [
                    [
                        arm,
                        *(
                            Value(metric, arm, form="{:.1e}", largest=True)
                            for metric in ("sign_test_p", "sign_test_p_books")
                        ),
                    ]
                    for arm in ARMS
                    if arm != PLAIN
                ],
                "The probability of so many or more on one side, were both alike; of the seeds the "
                "largest. Of contexts, as the authors test: it takes them for independent, which those "
                "of one book are not. Of books: how many have more contexts on one side than on the "
                "other.",
            ),
            Table(
                "What crosses the end of a window",
                ("continued by", *(name.replace("_", " ") for name in RATES)),
                [[arm, *(share_of(scale, name, arm) for name in RATES)] for arm in ARMS],
                "Shares of the contexts in which it can be told, by the surface of the text alone.",
            ),
            Table(
                "In how many contexts that can be told",
                ("continued by", *(name.replace("_", " ") for name in RATES)),
                [
                    [arm, *(Value(told_in(name), arm, form="{:,.0f}") for name in RATES)]
                    for arm in ARMS
                ],
                "The mean over what was drawn with each seed.",
            ),
        ],
        samples=[
            Samples(
                "How they go on",
                ARMS,
                given="context",
                made="continuation",
                note="The end of a window with the first token of the next one, and the most probable "
                "continuation there. They are the first that were drawn, not chosen.",
            )
        ],
        threats=Threats(
            internal=[
                "In the new window the plain model is given a single token, and soon repeats itself.",
                *(["Of each of the two models there is one training."] if ours else []),
                *(
                    [
                        "The tree these runs were made from differed from its commit in the earlier "
                        "records that they replaced, and in nothing else."
                    ]
                    if scale == "small"
                    else []
                ),
            ],
            construct=[
                "Nearer in topic is not better: compare with what the book itself has.",
                "Names, pronouns, quotes and sentences are told by spelling: some are counted wrongly, "
                "the same way for every arm.",
            ],
            seeds="They draw contexts of the same few books and fit topics, and train nothing: "
            "intervals are over books, all seeds together, and say what other books would change, not "
            "what other models would."
            if ours
            else "",
        ),
    )


def done(scale: str) -> str:
    chosen = SCALES[scale]
    written = f"{WRITTEN} tokens after each of {chosen.contexts:,} windows of {chosen.window}"
    if scale not in TRAINED:
        return (
            "The package's two models of 6 million weights, one plain and one with 16 memory tokens "
            f"(not the pooled state of the paper), go on for {written}."
        )
    trained = language.done(scale, whole=False, rate=language.middle_rate(scale))
    return f"{trained} Plain and with the published state, they go on for {written}."


def topic_distance(scale: str, arm: str, minus: str | None = None) -> Value:
    form = "{:.4f}" if minus is None else "{:+.4f}"
    return Value("divergence", arm, minus, form, over_units=scale not in TRAINED)


def share_of(scale: str, name: str, arm: str, minus: str | None = None) -> Value:
    form = "{:.3f}" if minus is None else "{:+.3f}"
    return Value(name, arm, minus, form, share=minus is None, over_units=scale not in TRAINED)


EXPERIMENT = Experiment(
    title="What crosses a window's end",
    question="When a model goes on in a new window, does it stay with the topic, the people and the "
    "sentence of the one before?",
    source="Yoshida, Ettinger, Gimpel: Adding Recurrence to Pretrained Transformers, section 5.3",
    runs=runs,
    layout=layout,
    seeds={"smoke": (0,), "small": (0, 1, 2), "paper": (0,)},
    place=5,
)
