"""The report's tables in Markdown, for a README or an issue."""

from collections.abc import Iterable, Iterator, Sequence

from ..definition import Claim, Samples
from .cells import as_text
from .overview import BRACKETS, COLUMNS, DIFFERENCES, SIZES, VERDICTS, glance, summary
from .section import CAME_OUT, REMOVED, Section, tally
from .threats import threats


def as_markdown(sections: Sequence[Section]) -> str:
    parts = [part for section in sections for part in _section(section)]
    explanations = [text for text in (summary(sections), SIZES, BRACKETS, VERDICTS) if text]
    return "\n\n".join([*_answers(sections), *_overview(sections), *explanations, *parts]) + "\n"


def _answers(sections: Sequence[Section]) -> Iterable[str]:
    lines = [
        f"* {answer.text.format(*(as_text(value, section) for value in answer.values))} "
        f"({section.called})"
        for section in sections
        for answer in section.answers()
    ]
    if lines:
        yield "## In short"
        yield DIFFERENCES
        yield "\n".join(lines)


def _overview(sections: Sequence[Section]) -> Iterable[str]:
    yield "## What was measured"
    yield _table(
        COLUMNS, [[f"{one.about['title']} ({one.scale})", *glance(one)] for one in sections]
    )


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
        yield _table(
            table.columns, [[as_text(cell, section) for cell in row] for row in table.rows]
        )
        if table.note:
            yield table.note
    for one in section.layout.samples:
        yield from _samples(one, section)
    listed = threats(section).items()
    yield "\n".join(f"* {kind} validity: {' '.join(texts)}" for kind, texts in listed if texts)


def _claim(section: Section, claim: Claim, verdict: str, outcomes: Sequence[str]) -> Iterator[str]:
    """A claim and the values that decide it."""
    details = tally(outcomes, verdict, section.few(claim))
    yield f"* **{verdict}**{f' ({details})' if details else ''}: {claim.text} ({claim.source})"
    words = [CAME_OUT.get(outcome, outcome) for outcome in outcomes]
    lines = list(zip(claim.expects, words, strict=True))
    if claim.rests_on is not None:
        lines.insert(0, (claim.rests_on, section.outcome_of_basis(claim.rests_on)))
    for expected, outcome in lines:
        value = f"{expected.said or expected.value.arm}: {as_text(expected.value, section)}"
        removed = section.state_removed(expected, claim)
        remark = "" if removed is None else f", {REMOVED} {as_text(removed, section)}"
        yield f"    * {value}, expected {expected.expected}: {outcome}{remark}"


def _samples(samples: Samples, section: Section) -> Iterator[str]:
    given = section.samples(samples)
    if given:
        yield f"### {samples.title}"
        yield samples.note
    for sample in given:
        lines = [f"> {_in_a_line(sample.given)}", ">"]
        lines += [f"> * **{arm}**: {_in_a_line(text)}" for arm, text in sample.made.items()]
        yield "\n".join(lines)


def _in_a_line(text: str) -> str:
    """With Markdown's own signs escaped."""
    joined = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in "*_`<>[]|#" else sign for sign in joined)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([_line(columns), "|---" * len(columns) + "|", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
