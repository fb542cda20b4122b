"""Samples: what every arm made of the same beginnings, from the notes of its first seed's record."""

from collections.abc import Iterator
from typing import NamedTuple

from ...pages.wording import escaped
from ..definition import Samples
from .section import Section


class Sample(NamedTuple):
    given: str
    made: dict[str, str]  # by arm


def gathered(samples: Samples, section: Section) -> Iterator[Sample]:
    notes = {
        arm: records[0]["notes"] for arm in samples.arms if (records := section.records.of(arm))
    }
    for together in zip(*notes.values(), strict=False):
        given = together[0][samples.given]
        # Arms whose records are of other beginnings are left out.
        made = {
            arm: note[samples.made]
            for arm, note in zip(notes, together, strict=True)
            if note[samples.given] == given
        }
        yield Sample(given, made)


def as_html(samples: Samples, section: Section) -> str:
    found = [_shown(sample) for sample in gathered(samples, section)]
    if not found:
        return ""
    first, *others = found
    more = f"<details><summary>More of them</summary>{''.join(others)}</details>" if others else ""
    note = f'<p class="hint">{escaped(samples.note)}</p>'
    return f"<h3>{escaped(samples.title)}</h3>{note}{first}{more}"


def _shown(sample: Sample) -> str:
    made = "".join(
        f"<div><dt>{escaped(arm)}</dt><dd>{escaped(text)}</dd></div>"
        for arm, text in sample.made.items()
    )
    return (
        f'<div class="written sample"><p class="text prompt">{escaped(sample.given)}</p>'
        f'<dl class="facts">{made}</dl></div>'
    )


def as_markdown(samples: Samples, section: Section) -> Iterator[str]:
    found = list(gathered(samples, section))
    if found:
        yield f"### {samples.title}"
        yield samples.note
    for given, made in found:
        lines = [f"> {_in_a_line(given)}", ">"]
        lines += [f"> * **{arm}**: {_in_a_line(text)}" for arm, text in made.items()]
        yield "\n".join(lines)


def _in_a_line(text: str) -> str:
    """Markdown's own signs lose their meaning."""
    joined = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in "*_`<>[]|#" else sign for sign in joined)
