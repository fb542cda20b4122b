"""The report's tables in Markdown, for a README or an issue."""

from collections.abc import Iterable, Sequence

from . import samples
from .cells import as_text
from .gather import Section, tally
from .overview import HEADS, INTERVALS, glance
from .threats import threats


def as_markdown(sections: Sequence[Section]) -> str:
    parts = [part for section in sections for part in _section(section)]
    return "\n\n".join([*_overview(sections), INTERVALS, *parts]) + "\n"


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
    found = zip(section.layout.claims, section.verdicts(), section.outcomes(), strict=True)
    lines = [
        f"* **{verdict}**{_counted(outcomes, verdict)}: {claim.text} ({claim.source})"
        for claim, verdict, outcomes in found
    ]
    if lines:
        yield "\n".join(lines)
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


def _counted(outcomes: Sequence[str], verdict: str) -> str:
    told = tally(outcomes, verdict)
    return f" ({told})" if told else ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
