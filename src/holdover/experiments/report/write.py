"""holdover report: records in, one page and its tables in Markdown out."""

from pathlib import Path

from rich.console import Console

from ...pages.page import write_document
from ...runs.provenance import make_folder
from ...storage import write_atomically
from .gather import gather
from .html import body, head
from .markdown import as_markdown
from .options import ReportOptions


def report(options: ReportOptions, console: Console | None = None) -> Path:
    """Write the page and the Markdown beside it; returns the page's path."""
    console = console or Console(highlight=False)
    sections = gather(options)
    make_folder(options.output.parent)
    parts = [head(sections), *map(body, sections)]
    write_document(options.output, "holdover report", parts)
    beside = options.output.with_suffix(".md")
    write_atomically(beside, as_markdown(sections).encode())
    console.print(f"Report: {options.output}, tables: {beside}", soft_wrap=True)
    return options.output
