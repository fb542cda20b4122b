"""Threats to validity: what an experiment says of itself, and what its records show."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median, median_low

from ..estimates import FEWEST_SEEDS
from ..measures import value_of
from .section import Section, named_text

KINDS = ("internal", "external", "construct", "conclusion")
# Verdicts that decide nothing.
OPEN = ("undecided", "incomplete", "not measured")
# From so many comparisons on, chance decides some.
MANY = 10
# So many arms are named, others counted.
NAMED = 4
# A seed lies far from the others where its gap is so many times what others differ by, and so large a
# share of the value.
FAR, SEEN = 3.0, 0.05


def threats(section: Section) -> dict[str, list[str]]:
    """By kind; the records' own come first."""
    seen = {
        "internal": list(_internal(section)),
        "external": list(_external(section)),
        "construct": list(_construct(section)),
        "conclusion": list(_conclusion(section)),
    }
    told = asdict(section.layout.threats)
    return {kind: [*seen[kind], *told[kind]] for kind in KINDS}


def _internal(section: Section) -> Iterator[str]:
    made = [record["provenance"] for record in section.records.found.values()]
    commits = sorted({str(one["commit"]) for one in made})
    if any("dirty" in commit for commit in commits):
        yield "Some runs were made from a tree with changes that no commit holds."
    if len(commits) > 1:
        yield f"The runs were made at {len(commits)} commits: {', '.join(commits)}."
    devices = sorted({one["device"] for one in made})
    if len(devices) > 1:
        yield f"The runs were made on different devices: {'; '.join(devices)}."
    if section.lacking():
        made_so_far = len(section.records.found)
        yield f"{made_so_far} of {section.planned()} runs were made so far: what is incomplete is open."
    if failed := missing_arms(section):
        yield f"Not measured yet: {'; '.join(failed)}."


def _external(section: Section) -> Iterator[str]:
    texts = {
        named_text(text)
        for record in section.records.found.values()
        for text in record["data"]
        if text.get("split") != "train"
    }
    if texts:
        yield f"Measured on {', '.join(sorted(texts))}, and nowhere else."
    yield (
        section.layout.threats.scale
        or {
            "smoke": "Sizes at which nothing can be learnt: the numbers show that it runs.",
            "small": "Small models: larger ones need not behave alike.",
            "real": "One pretrained model of one family.",
            "paper": "The papers' own model and data.",
        }[section.scale]
    )


def _construct(section: Section) -> Iterator[str]:
    expected = [e for claim in section.layout.claims if not claim.check for e in claim.expects]
    if any(section.not_by_its_state(e) for e in expected):
        yield (
            "Of some that are better or worse than a model without a state, the state is the smaller "
            "part of the reason: what taking it away costs is said beside them. What else is was not "
            "measured."
        )


def _conclusion(section: Section) -> Iterator[str]:
    fewest, most = section.seeds()
    if most == 1:
        yield (
            "One seed: intervals say what more such text would change, not what another seed would, "
            "which may be more than small differences here."
        )
    elif section.layout.threats.seeds:
        yield f"{most} seeds an arm. {section.layout.threats.seeds}"
    elif fewest < most:
        yield f"{most} seeds an arm{_but_for(section, most)}."
    else:
        yield f"{most} seeds an arm: intervals say what another seed would change, on the same text."
    for arm, metric, values in apart(section):
        told = ", ".join(f"{value:.4g}" for value in values)
        yield f"One seed of {arm} lies far from the others ({metric}: {told})."
    undecided = sum(verdict in OPEN for verdict in section.verdicts())
    if undecided:
        yield f"{undecided} of {len(section.layout.claims)} claims are not decided by these runs."
    compared = sum(one != "missing" for outcomes in section.outcomes() for one in outcomes)
    if compared >= MANY and most > 1:
        yield (
            f"{compared} things are expected: were there nothing to find, chance would let about "
            f"{compared * 0.025:.1g} of them hold, and as many fail."
        )


def _but_for(section: Section, most: int) -> str:
    """Which of the arms that are shown have fewer seeds, where they are few."""
    shown = section.shown_arms()
    fewer = {
        arm: len(section.records.of(arm))
        for arm in section.arms()
        if arm in shown and len(section.records.of(arm)) < most
    }
    if len(fewer) > NAMED:
        return f", but for {len(fewer)} that have fewer"
    return f", but for {', '.join(f'{arm} ({seeds})' for arm, seeds in fewer.items())}"


def apart(section: Section) -> Iterator[tuple[str, str, list[float]]]:
    """Arms of which one seed lies far from the others in a measure that claims rest on: a training that
    went otherwise, and makes an interval that says little."""
    found: dict[str, dict[str, list[float]]] = {}
    for arm, metric in _compared(section):
        seeds = [
            value_of(record["measures"][metric])
            for record in section.records.of(arm)
            if record["measures"].get(metric) is not None
        ]
        if len(seeds) >= FEWEST_SEEDS:
            found.setdefault(metric, {})[arm] = seeds
    told = set()
    for metric, arms in found.items():
        usual = median_low([max(seeds) - min(seeds) for seeds in arms.values()])
        for arm, seeds in arms.items():
            if arm not in told and _one_is_far(seeds, usual):
                told.add(arm)
                yield arm, metric, seeds


def _compared(section: Section) -> Iterator[tuple[str, str]]:
    """Arms and measures that claims rest on; not what is a difference in itself, which is near zero."""
    for claim in section.layout.claims:
        for value in (expected.value for expected in claim.expects):
            if value.minus is not None:
                yield value.minus, value.minus_metric or value.metric
            if value.minus is not None or "+" not in value.form:
                yield value.arm, value.metric


def _one_is_far(seeds: Sequence[float], usual: float) -> bool:
    """Its gap to the nearest of the others, against their range, the usual one and the value's size."""
    first, *_, last = ordered = sorted(seeds)
    for one, others in ((first, ordered[1:]), (last, ordered[:-1])):
        gap = min(abs(one - other) for other in others)
        scattered = max(others[-1] - others[0], usual)
        if gap > FAR * scattered and gap > SEEN * abs(median(ordered)):
            return True
    return False


def missing_arms(section: Section) -> list[str]:
    """Arms that the layout shows and no record has."""
    there = set(section.arms())
    return [arm for arm in section.shown_arms() if arm not in there]
