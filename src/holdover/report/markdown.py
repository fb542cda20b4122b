"""The report's tables in Markdown, for a README or an issue."""

from collections.abc import Iterable, Iterator, Sequence

from ..experiment.definition import Claim
from . import samples
from .cells import as_text
from .gather import CAME_OUT, Section, tally
from .overview import HEADS, INTERVALS, SIZES, VERDICTS, glance, summary
from .threats import threats


def as_markdown(sections: Sequence[Section]) -> str:
    parts = [part for section in sections for part in _section(section)]
    said = [text for text in (summary(sections), SIZES, INTERVALS, VERDICTS) if text]
    return "\n\n".join([*_overview(sections), *said, *parts]) + "\n"


def _overview(sections: Sequence[Section]) -> Iterable[str]:
    yield "## What was measured"
    rows = [[f"{one.about['title']} ({one.scale})", *glance(one)] for one in sections]
    yield "\n".join([_line(HEADS), "|---" * len(HEADS) + "|", *map(_line, rows)])


def _section(section: Section) -> Iterable[str]:
    about = section.about
    yield f"## {about['title']} ({section.scale})"
    yield about["question"]
    if section.layout.done:
        yield section.layout.done
    if section.layout.claims:
        yield "\n".join(line for judged in section.judged() for line in _claim(section, *judged))
    for table in section.layout.tables:
        yield f"### {table.title}"
        rows = [[as_text(cell, section) for cell in row] for row in table.rows]
        yield "\n".join(
            [_line(table.columns), "|---" * len(table.columns) + "|", *map(_line, rows)]
        )
        if table.note:
            yield table.note
    for one in section.layout.samples:
        yield from samples.as_markdown(one, section)
    found = threats(section)
    yield "\n".join(f"* {kind} validity: {' '.join(said)}" for kind, said in found.items() if said)


def _claim(section: Section, claim: Claim, verdict: str, outcomes: Sequence[str]) -> Iterator[str]:
    """A claim with what decides it."""
    told = tally(outcomes, verdict, section.seeds_of(claim))
    yield f"* **{verdict}**{f' ({told})' if told else ''}: {claim.text} ({claim.source})"
    for expected, outcome in zip(claim.expects, outcomes, strict=True):
        said = f"{expected.said or expected.value.arm}: {as_text(expected.value, section)}"
        away = None if claim.check else section.not_by_its_state(expected)
        but = "" if away is None else f", but taking its state away costs {as_text(away, section)}"
        yield f"    * {said}, expected {expected.expected}: {CAME_OUT.get(outcome, outcome)}{but}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
