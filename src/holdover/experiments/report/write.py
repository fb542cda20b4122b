"""holdover report: records in, one page and its tables in Markdown out."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console

from ...pages.page import write_page
from ...runs.provenance import make_folder
from ...storage import write_atomically
from ..definition import Answer, Published, Value
from ..options import ReportOptions
from .cells import number_of
from .charts import draw
from .gather import gather
from .markdown import as_markdown
from .overview import BRACKETS, COLUMNS, DIFFERENCES, SIZES, VERDICTS, glance, summary
from .section import CAME_OUT, REMOVED, Section, mostly_not_the_state, tally
from .threats import threats

# CSS classes of verdicts; all others are open.
KINDS = {"reproduced": "good", "holds": "good", "not reproduced": "bad", "does not hold": "bad"}
QUESTION = (
    "Does a carried state improve what pretrained transformers do with long texts, and what does it "
    "cost?"
)


def report(options: ReportOptions, console: Console | None = None) -> Path:
    """Write the page and the Markdown next to it; returns the path of the page."""
    console = console or Console(highlight=False)
    sections = gather(options)
    make_folder(options.output.parent)
    write_page(options.output, "report.html", **_context(sections))
    markdown = options.output.with_suffix(".md")
    write_atomically(markdown, as_markdown(sections).encode())
    console.print(f"Report: {options.output}, tables: {markdown}", soft_wrap=True)
    return options.output


def _context(sections: Sequence[Section]) -> dict[str, Any]:
    """All that `pages/templates/report.html` shows."""
    records = [record for section in sections for record in section.records.found.values()]
    return {
        "title": "holdover report",
        "question": QUESTION,
        "runs": len(records),
        "seconds": sum(record["seconds"] for record in records),
        "sections": sections,
        "answers": _answers,
        "differences": DIFFERENCES,
        "columns": COLUMNS,
        "glance": glance,
        "explanations": (SIZES, BRACKETS, VERDICTS),
        "summary": summary(sections),
        "claims": [
            (section, *judged)
            for checks in (False, True)
            for section in sections
            for judged in section.judged()
            if judged[0].check == checks
        ],
        "kind": lambda verdict: KINDS.get(verdict, "open"),
        "tally": tally,
        "mostly_not_the_state": mostly_not_the_state,
        "came_out": CAME_OUT,
        "removed": REMOVED,
        "is_value": lambda cell: isinstance(cell, Value),
        "is_published": lambda cell: isinstance(cell, Published),
        "number_of": number_of,
        "draw": lambda section: [
            drawn for figure in section.layout.figures if (drawn := draw(figure, section))
        ],
        "costs": _costs,
        "threats": threats,
        "texts": _texts,
    }


def _answers(section: Section) -> list[list[tuple[str, Value | None]]]:
    """Each answer as pieces of text, most of them followed by a value."""

    def pieces(answer: Answer) -> list[tuple[str, Value | None]]:
        return list(zip_longest(answer.text.split("{}"), answer.values))

    return [pieces(answer) for answer in section.answers()]


def _costs(section: Section) -> Iterator[dict[str, Any]]:
    for arm in section.arms():
        records = section.records.of(arm)
        yield {
            "arm": arm,
            "runs": len(records),
            "seconds": sum(record["seconds"] for record in records),
            "bytes": max(record["peak_memory"]["bytes"] for record in records),
            "kinds": ", ".join(sorted({record["peak_memory"]["kind"] for record in records})),
            "devices": ", ".join(sorted({record["provenance"]["device"] for record in records})),
        }


def _texts(record: Mapping[str, Any]) -> str:
    """What a run read, with the beginning of each checksum."""
    return ", ".join(
        f"{text['source']} {str(text.get('sha256', ''))[:12]}" for text in record["data"]
    )
