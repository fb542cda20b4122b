"""What was measured, at a glance: for every experiment its runs, test texts and devices."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...pages.wording import count, duration, scaled
from .section import Section, named_text

COLUMNS = ("experiment", "runs", "scored on", "computed on")
DIFFERENCES = (
    "Each difference compares the model with and without the named feature. Negative is better for "
    "losses and errors (in nats unless stated), positive for F1. State removed: how much the loss of "
    "the same model rises. Brackets are 95 % intervals; \u2020 marks intervals over texts instead of "
    "seeds."
)
SIZES = (
    "Scales: small is the bundled model, or one of its size. Real is a pretrained model from elsewhere "
    "or, if none exists, a model as deep as the papers' with less training. Paper is the papers' own "
    "setup. Time is the sum over all runs; several may have shared a device."
)
BRACKETS = (
    "Brackets: 95 % intervals. With three or more seeds they are over seeds and show what another seed "
    "would change. With fewer seeds, or if seeds only draw from the same texts (\u2020), they are over "
    "documents or blocks of the test text and show what more such text would change, with the same "
    "weights. With fewer than eight documents or blocks there is no interval."
)
VERDICTS = (
    "An expectation holds if the whole interval lies on its side of the bound, fails if the whole "
    "interval lies on the other side, and is open otherwise. A claim is reproduced (a claim of our own "
    "holds) if all its expectations hold, partly reproduced if at least half hold, not reproduced if "
    "at least half fail, and undecided otherwise. With fewer than three seeds, or with draws from one "
    "training, another seed may change more than the interval over texts shows; the results then only "
    "point for a claim, partly for it, or against it. A gain over a model without a state counts as "
    "open if removing the state costs less than half of the gain: most of the gain then has another "
    "cause, such as the course of training."
)
# More texts than this are counted instead of named.
MOST_NAMED = 6


class Glance(NamedTuple):
    runs: str
    scored: str
    computed: str


def glance(section: Section) -> Glance:
    records = section.records.found.values()
    devices = sorted({record["provenance"]["device"] for record in records})
    seconds = sum(record["seconds"] for record in records)
    return Glance(
        runs=f"{_runs(section)}: {count(len(section.arms()), 'arm')}, {_seeds(section)}",
        scored=_texts(section),
        computed=f"{'; '.join(devices)} ({duration(seconds)})",
    )


def summary(sections: Sequence[Section]) -> str:
    """The number of claims per verdict: claims to reproduce, and our own."""
    judged = [(claim.ours, verdict) for one in sections for claim, verdict, _ in one.judged()]
    sentences = []
    for ours, which in ((False, "to reproduce"), (True, "of our own")):
        counts = Counter(verdict for mine, verdict in judged if mine == ours)
        if counts:
            listed = ", ".join(f"{verdict} {number}" for verdict, number in counts.most_common())
            sentences.append(f"{count(counts.total(), 'claim')} {which}: {listed}.")
    return " ".join(sentences)


def _runs(section: Section) -> str:
    made = len(section.records.found)
    return f"{made} of {section.planned()} runs" if section.lacking() else count(made, "run")


def _seeds(section: Section) -> str:
    fewest, most = section.seeds()
    return count(most, "seed") if fewest == most else f"{fewest} to {most} seeds"


def _texts(section: Section) -> str:
    """Texts that are not only trained on, with their sizes."""
    texts: dict[str, list[Mapping[str, Any]]] = {}
    for record in section.records.found.values():
        for text in record["data"]:
            if text.get("split") != "train":
                texts.setdefault(named_text(text), []).append(text)
    named = [
        f"{name}: {sizes}" if (sizes := ", ".join(_sizes(group))) else name
        for name, group in list(texts.items())[:MOST_NAMED]
    ]
    more = [f"and {len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
    if not any(": " in one for one in named) and (units := _units(section)):
        more.append(f"{'each ' if len(texts) > 1 else ''}up to {units}")
    return "; ".join(named + more)


def _units(section: Section) -> str:
    """What measures are over, for texts without a known size: the largest number of each unit."""
    most: dict[str, int] = {}
    for record in section.records.found.values():
        for measure in record["measures"].values():
            over = measure.get("over", "") if isinstance(measure, Mapping) else ""
            for number, unit in re.findall(r"(\d[\d,]*) (\w+)", over):
                most[unit] = max(most.get(unit, 0), int(number.replace(",", "")))
    return ", ".join(f"{number:,} {unit}" for unit, number in most.items())


def _sizes(texts: list[Mapping[str, Any]]) -> Iterator[str]:
    """Documents, words and bytes of texts; windows of time series."""
    documents = max(text.get("documents_read", 1) for text in texts)
    if documents > 1:
        yield count(documents, "document")
    counts = [text["counts"] for text in texts if "counts" in text]
    for unit, numbers in (
        ("words", [one["words"] for one in counts]),
        ("bytes", [one["bytes"] for one in counts]),
        ("windows", [text["windows"] for text in texts if "windows" in text]),
    ):
        if any(numbers):
            ends = dict.fromkeys(scaled(number) for number in (min(numbers), max(numbers)))
            yield f"{' to '.join(ends)} {unit}"
