"""One page that shows what a demo found: a single file that loads nothing and works without a script."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..pages import sections
from ..storage import write_atomically
from .heat import Heat
from .wording import escaped

# Whatever a text or record holds, a browser fetches nothing for this page and sends nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_page(path: Path, record: dict[str, Any], heat: Heat) -> None:
    """The demo's page, written as a whole, or what was there is left."""
    title = f"{record['text']}: holdover demo"
    write_parts(path, title, [sections.head(record), *sections.body(record, heat)], record)


def write_parts(path: Path, title: str, parts: Iterable[str], record: dict[str, Any]) -> None:
    """A page of sections, with where it comes from at its foot."""
    write_document(path, title, [*parts, sections.foot(record)])


def write_document(path: Path, title: str, parts: Iterable[str]) -> None:
    """A page of parts."""
    joined = "\n".join(parts)
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escaped(title)}</title>
<style>
{_resource("page.css")}</style></head>
<body><main>
{joined}
</main><script>
{_resource("page.js")}</script></body></html>
"""
    # A record may hold what is no text, such as half of a surrogate pair out of a file's name.
    write_atomically(path, page.encode("utf-8", "replace"))


def _resource(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
