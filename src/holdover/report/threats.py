"""Threats to validity: what an experiment says of itself, and what its records show."""

from collections.abc import Iterator
from dataclasses import asdict

from .gather import Section, named_text

KINDS = ("internal", "external", "construct", "conclusion")


def threats(section: Section) -> dict[str, list[str]]:
    """By kind; the records' own come first."""
    seen = {
        "internal": list(_internal(section)),
        "external": list(_external(section)),
        "construct": [],
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


def _conclusion(section: Section) -> Iterator[str]:
    fewest, most = section.seeds()
    if most == 1:
        yield "One seed: intervals say what another text would change, not what another seed would."
    elif fewest < most:
        yield f"Between {fewest} and {most} seeds an arm."
    else:
        yield f"{most} seeds an arm: intervals say what another seed would change, on the same text."
    undecided = section.verdicts().count("undecided")
    if undecided:
        yield f"{undecided} of {len(section.layout.claims)} claims cannot be decided by these runs."


def missing_arms(section: Section) -> list[str]:
    """Arms that the layout shows and no record has."""
    there = set(section.arms())
    return [arm for arm in section.shown_arms() if arm not in there]
