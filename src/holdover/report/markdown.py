"""The report's tables in Markdown, for a README or an issue."""

from collections.abc import Iterable, Sequence

from .cells import as_text
from .gather import Section
from .threats import threats


def as_markdown(sections: Sequence[Section]) -> str:
    return "\n\n".join(part for section in sections for part in _section(section)) + "\n"


def _section(section: Section) -> Iterable[str]:
    about = section.about
    yield f"## {about['title']} ({section.scale})"
    yield about["question"]
    verdicts = zip(section.layout.claims, section.verdicts(), strict=True)
    lines = [f"* **{verdict}**: {claim.text} ({claim.source})" for claim, verdict in verdicts]
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
    found = threats(section)
    yield "\n".join(f"* {kind} validity: {' '.join(said)}" for kind, said in found.items() if said)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
