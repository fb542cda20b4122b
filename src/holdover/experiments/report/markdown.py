"""The report's tables in Markdown, for a README or an issue."""

from collections.abc import Iterable, Iterator, Sequence

from ..definition import Claim
from ..report import samples
from .cells import as_text
from .overview import BELOW, HEADS, INTERVALS, SIZES, VERDICTS, glance, summary
from .section import AWAY, CAME_OUT, Section, tally
from .threats import threats


def as_markdown(sections: Sequence[Section]) -> str:
    parts = [part for section in sections for part in _section(section)]
    said = [text for text in (summary(sections), SIZES, INTERVALS, VERDICTS) if text]
    return "\n\n".join([*_answers(sections), *_overview(sections), *said, *parts]) + "\n"


def _answers(sections: Sequence[Section]) -> Iterable[str]:
    lines = [
        f"* {answer.text.format(*(as_text(value, section) for value in answer.values))} "
        f"({section.called})"
        for section in sections
        for answer in section.answers()
    ]
    if lines:
        yield "## In short"
        yield BELOW
        yield "\n".join(lines)


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
    told = tally(outcomes, verdict, section.few(claim))
    yield f"* **{verdict}**{f' ({told})' if told else ''}: {claim.text} ({claim.source})"
    told = [CAME_OUT.get(outcome, outcome) for outcome in outcomes]
    lines = list(zip(claim.expects, told, strict=True))
    if claim.rests_on is not None:
        lines.insert(0, (claim.rests_on, section.rests(claim.rests_on)))
    for expected, found in lines:
        said = f"{expected.said or expected.value.arm}: {as_text(expected.value, section)}"
        away = section.besides(expected, claim)
        but = "" if away is None else f", {AWAY} {as_text(away, section)}"
        yield f"    * {said}, expected {expected.expected}: {found}{but}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
