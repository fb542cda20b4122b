"""holdover report: gather layouts and records, write one page and its tables in Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console

from ...pages.page import write_page
from ...runs.provenance import make_folder
from ...storage import write_atomically
from ..definition import SCALES, Answer, Experiment, Published, Value
from ..experiment_file import LAYOUT, from_json
from ..options import ReportOptions, did_you_mean
from ..records import KIND, read_json, read_records
from .cells import number_of
from .charts import draw
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


def gather(options: ReportOptions) -> list[Section]:
    folders = sorted(options.results.glob("*/*"), key=_by_name_and_scale)
    recorded = [folder for folder in folders if _holds_records(folder)]
    _check_experiments(options, recorded)
    chosen = [folder for folder in recorded if _is_requested(folder, options)]
    if not chosen:
        raise ValueError(
            f"There are no records{_at_scales(options)} in {options.results} (the scale smoke is left "
            "out unless --scales names it): make some with holdover run experiments/NAME.py --scale "
            "small."
        )
    return sorted((_section(folder, options) for folder in chosen), key=_order)


def _holds_records(folder: Path) -> bool:
    others = (path for path in folder.glob("*.json") if path.name != LAYOUT)
    if (folder / LAYOUT).exists():
        return next(others, None) is not None
    # Any folder may hold JSON.
    return any(_is_record(path) for path in others)


def _is_record(path: Path) -> bool:
    try:
        return read_json(path).get("record") == KIND
    except ValueError:
        return False


def _is_requested(folder: Path, options: ReportOptions) -> bool:
    name, scale = folder.parent.name, folder.name
    if options.experiments and name not in options.experiments:
        return False
    return scale in options.scales if options.scales else scale != "smoke"


def _check_experiments(options: ReportOptions, recorded: Sequence[Path]) -> None:
    """An experiment that was named is never left out silently."""
    names = sorted({folder.parent.name for folder in recorded})
    for name in options.experiments if names else ():
        folders = [folder for folder in recorded if folder.parent.name == name]
        if not folders:
            raise ValueError(
                f"There are no records of {name} in {options.results}: there are records of "
                f"{', '.join(names)}{did_you_mean(name, names)}"
            )
        if not any(_is_requested(folder, options) for folder in folders):
            scales = ",".join(folder.name for folder in folders)
            raise ValueError(
                f"There are no records of {name}{_at_scales(options)} in {options.results}: give "
                f"--scales {scales}, which has records."
            )


def _at_scales(options: ReportOptions) -> str:
    return f" at the scale {' or '.join(options.scales)}" if options.scales else ""


def _section(folder: Path, options: ReportOptions) -> Section:
    name, scale, path = folder.parent.name, folder.name, folder / LAYOUT
    if scale not in SCALES:
        raise ValueError(
            f"{folder} holds records, but {scale} is not a scale ({', '.join(SCALES)}): move them to "
            "another folder."
        )
    how = (
        f"holdover run FILE --scale {scale} --results {options.results} --list writes it, where FILE "
        f"is the experiment's file {name}.py"
    )
    if not path.exists():
        raise ValueError(
            f"{folder} holds records without {LAYOUT}, which says what they show: {how}."
        )
    about = read_json(path)
    try:
        layout = from_json(about)
        for key in ("title", "question", "source"):
            about[key]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} does not say what its records show ({type(error).__name__}: {error}): delete it; "
            f"{how}."
        ) from error
    return Section(name, scale, about, layout, read_records(folder))


def _by_name_and_scale(folder: Path) -> tuple[str, int]:
    return folder.parent.name, SCALES.index(folder.name) if folder.name in SCALES else len(SCALES)


def _order(section: Section) -> tuple[int, str, int]:
    """In the report, lowest `place` first."""
    return section.about.get("place", Experiment.place), section.name, SCALES.index(section.scale)


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
