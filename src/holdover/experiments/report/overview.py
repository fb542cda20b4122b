"""What was measured, at a glance: of every experiment its runs, what they were scored on, and where."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ...pages.wording import count, duration, scaled
from .section import Section, named_text

HEADS = ("experiment", "runs", "scored on", "computed on")
BELOW = (
    "Differences are to the same model without what is named: of losses and errors, in nats unless it "
    "is said, below zero is better; of F1 above. Taken away: what the same model loses without its "
    "state. In brackets 95 % intervals, with \u2020 over texts and not over seeds."
)
SIZES = (
    "Scales: small is the model in the package, or one of its size; real is a pretrained model of "
    "others, or where there is none one as deep as the papers', trained for less; paper is the papers' "
    "own. Time is that of all runs together, of which several may have shared a device."
)
INTERVALS = (
    "In brackets: 95 % intervals. From three seeds on they are over seeds, and say what another seed "
    "would change; with fewer, or where seeds only draw from the same texts (\u2020), they are over "
    "documents or blocks of the test text, and say what more such text would change, with the same "
    "weights. Of fewer than eight documents or blocks there is none."
)
VERDICTS = (
    "What a claim expects holds where the whole interval lies on that side of the bound, and fails "
    "where it lies on the other; else it is open. A claim is reproduced (or, where it is our own, "
    "holds) where all that it expects holds, partly where at least half does, not where at least half "
    "fails, and undecided else. With fewer than three seeds, or draws from one training, none of this "
    "is said, since another seed may change more than the text's interval tells: what was found points "
    "for a claim, partly for it, or against it. A gain over a model without a state counts as open, "
    "whatever its interval, where taking the state away costs less than half of it: then it is mostly "
    "something else than the state, such as how the training went."
)
# So many texts are named, others counted.
LISTED = 6


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
    """How many claims came out how: what is to be reproduced, and what is asked here."""
    judged = [(claim.ours, said) for one in sections for claim, said, _ in one.judged()]
    told = []
    for ours, which in ((False, "to reproduce"), (True, "of our own")):
        counts = Counter(said for mine, said in judged if mine == ours)
        if counts:
            listed = ", ".join(f"{said} {many}" for said, many in counts.most_common())
            told.append(f"{count(counts.total(), 'claim')} {which}: {listed}.")
    return " ".join(told)


def _runs(section: Section) -> str:
    made = len(section.records.found)
    return f"{made} of {section.planned()} runs" if section.lacking() else count(made, "run")


def _seeds(section: Section) -> str:
    fewest, most = section.seeds()
    return count(most, "seed") if fewest == most else f"{fewest} to {most} seeds"


def _texts(section: Section) -> str:
    """What is not only learnt from, with how much of it there is."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in section.records.found.values():
        for text in record["data"]:
            if text.get("split") != "train":
                found.setdefault(named_text(text), []).append(text)
    told = [
        f"{name}: {sizes}" if (sizes := ", ".join(_sizes(texts))) else name
        for name, texts in list(found.items())[:LISTED]
    ]
    more = [f"and {len(found) - LISTED} more"] if len(found) > LISTED else []
    if not any(": " in one for one in told) and (units := _units(section)):
        more.append(f"{'each ' if len(found) > 1 else ''}up to {units}")
    return "; ".join(told + more)


def _units(section: Section) -> str:
    """What measures are over, where texts do not say how long they are: the most of each."""
    most: dict[str, int] = {}
    for record in section.records.found.values():
        for measure in record["measures"].values():
            over = measure.get("over", "") if isinstance(measure, Mapping) else ""
            for number, unit in re.findall(r"(\d[\d,]*) (\w+)", over):
                most[unit] = max(most.get(unit, 0), int(number.replace(",", "")))
    return ", ".join(f"{number:,} {unit}" for unit, number in most.items())


def _sizes(texts: list[Mapping[str, Any]]) -> Iterator[str]:
    """Documents, words and bytes of texts; windows of series."""
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
