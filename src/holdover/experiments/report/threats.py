"""Threats to validity: those that an experiment names, and those that its records show."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median, median_low

from ..estimates import FEWEST_SEEDS
from ..measures import value_of
from .section import Section, named_text

KINDS = ("internal", "external", "construct", "conclusion")
# Verdicts that decide nothing.
OPEN = ("undecided", "incomplete", "not measured")
# From this number of comparisons on, chance decides some.
MANY = 10
# More arms than this are counted instead of named.
MOST_NAMED = 4
# A seed is an outlier if its gap is this many times the range of the others, and this share of the
# value.
FAR, SEEN = 3.0, 0.05


def threats(section: Section) -> dict[str, list[str]]:
    """By kind; those from the records come first."""
    seen = {
        "internal": list(_internal(section)),
        "external": list(_external(section)),
        "construct": list(_construct(section)),
        "conclusion": list(_conclusion(section)),
    }
    named = asdict(section.layout.threats)
    return {kind: [*seen[kind], *named[kind]] for kind in KINDS}


def _internal(section: Section) -> Iterator[str]:
    made = [record["provenance"] for record in section.records.found.values()]
    commits = sorted({str(one["commit"]) for one in made})
    if any("dirty" in commit for commit in commits):
        yield "Some runs were made from a tree with uncommitted changes."
    if len(commits) > 1:
        yield f"The runs were made at {len(commits)} commits: {', '.join(commits)}."
    devices = sorted({one["device"] for one in made})
    if len(devices) > 1:
        yield f"The runs were made on different devices: {'; '.join(devices)}."
    if section.lacking():
        recorded = len(section.records.found)
        yield (
            f"So far {recorded} of {section.planned()} runs were made; incomplete claims are open."
        )
    if missing := missing_arms(section):
        yield f"Not measured yet: {'; '.join(missing)}."


def _external(section: Section) -> Iterator[str]:
    texts = {
        named_text(text)
        for record in section.records.found.values()
        for text in record["data"]
        if text.get("split") != "train"
    }
    if texts:
        yield f"Measured only on {', '.join(sorted(texts))}."
    yield (
        section.layout.threats.scale
        or {
            "smoke": "At these sizes nothing can be learnt: the numbers only show that it runs.",
            "small": "Small models: larger ones may behave differently.",
            "real": "One pretrained model of one family.",
            "paper": "The papers' own model and data.",
        }[section.scale]
    )


def _construct(section: Section) -> Iterator[str]:
    expected = [e for claim in section.layout.claims if not claim.check for e in claim.expects]
    if any(section.not_by_its_state(e) for e in expected):
        yield (
            "Some models differ from one without a state, but the state explains less than half of the "
            "difference: the cost of removing it is given next to the difference. The other causes were "
            "not measured."
        )


def _conclusion(section: Section) -> Iterator[str]:
    fewest, most = section.seeds()
    if most == 1:
        yield (
            "One seed: intervals show what more such text would change. Another seed was not tried and "
            "may change more than the small differences here."
        )
    elif section.layout.threats.seeds:
        yield f"{most} seeds per arm. {section.layout.threats.seeds}"
    elif fewest < most:
        yield f"{most} seeds per arm{_exceptions(section, most)}."
    else:
        yield f"{most} seeds per arm: intervals show what another seed would change, on the same text."
    for arm, metric, values in outliers(section):
        listed = ", ".join(f"{value:.4g}" for value in values)
        yield f"One seed of {arm} lies far from the others ({metric}: {listed})."
    undecided = sum(verdict in OPEN for verdict in section.verdicts())
    if undecided:
        yield f"{undecided} of {len(section.layout.claims)} claims are not decided by these runs."
    compared = sum(one != "missing" for outcomes in section.outcomes() for one in outcomes)
    if compared >= MANY and most > 1:
        yield (
            f"There are {compared} expectations: without any real effect, about "
            f"{compared * 0.025:.1g} of them would hold by chance, and as many would fail."
        )


def _exceptions(section: Section, most: int) -> str:
    """Shown arms that have fewer seeds: named if they are few."""
    shown = section.shown_arms()
    fewer = {
        arm: len(section.records.of(arm))
        for arm in section.arms()
        if arm in shown and len(section.records.of(arm)) < most
    }
    if len(fewer) > MOST_NAMED:
        return f", except for {len(fewer)} arms with fewer"
    return f", except for {', '.join(f'{arm} ({seeds})' for arm, seeds in fewer.items())}"


def outliers(section: Section) -> Iterator[tuple[str, str, list[float]]]:
    """Arms with one seed far from the others in a measure that claims rest on.

    One training went differently, so the interval over seeds says little.
    """
    measured: dict[str, dict[str, list[float]]] = {}
    for arm, metric in _compared(section):
        seeds = [
            value_of(record["measures"][metric])
            for record in section.records.of(arm)
            if record["measures"].get(metric) is not None
        ]
        if len(seeds) >= FEWEST_SEEDS:
            measured.setdefault(metric, {})[arm] = seeds
    named = set()
    for metric, arms in measured.items():
        usual = median_low([max(seeds) - min(seeds) for seeds in arms.values()])
        for arm, seeds in arms.items():
            if arm not in named and _has_outlier(seeds, usual):
                named.add(arm)
                yield arm, metric, seeds


def _compared(section: Section) -> Iterator[tuple[str, str]]:
    """Arms and measures that claims rest on, without measures that are differences near zero."""
    for claim in section.layout.claims:
        for value in (expected.value for expected in claim.expects):
            if value.minus is not None:
                yield value.minus, value.minus_metric or value.metric
            if value.minus is not None or "+" not in value.form:
                yield value.arm, value.metric


def _has_outlier(seeds: Sequence[float], usual: float) -> bool:
    """Compare the gap to the nearest seed with the others' range, the usual range and the value."""
    first, *_, last = ordered = sorted(seeds)
    for one, others in ((first, ordered[1:]), (last, ordered[:-1])):
        gap = min(abs(one - other) for other in others)
        scattered = max(others[-1] - others[0], usual)
        if gap > FAR * scattered and gap > SEEN * abs(median(ordered)):
            return True
    return False


def missing_arms(section: Section) -> list[str]:
    """Arms that the layout shows and no record has."""
    recorded = set(section.arms())
    return [arm for arm in section.shown_arms() if arm not in recorded]
