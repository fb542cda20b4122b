"""HTML pages from the templates next to this file.

A page is a single file. It loads nothing from the network and works without a script.
"""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..storage import write_atomically
from . import wording

FILTERS = ("count", "duration", "interval", "number", "percent", "scaled", "signed")
FILTERS += ("signed_interval", "size", "zero_in_interval")


@cache
def environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("holdover.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(wording, name) for name in FILTERS}
    return environment


def render(template: str, **context: Any) -> str:
    """The text of a template.

    A browser would turn a bare carriage return into a line feed, and it rejects NUL: texts may hold
    both, so they are replaced here.
    """
    text = environment().get_template(template).render(context)
    return text.replace("\r", "&#13;").replace("\0", "\ufffd")


def write_page(path: Path, template: str, **context: Any) -> None:
    """Replace the file as a whole; if this fails, the old page stays."""
    page = render(template, style=_source("page.css"), script=_source("page.js"), **context)
    # A record may hold invalid text, such as half of a surrogate pair from a file's name.
    write_atomically(path, (page + "\n").encode("utf-8", "replace"))


def _source(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
