"""What README.md and docs/*.md tell a reader to type: every fenced block and every command."""

import re
import shlex
from dataclasses import dataclass

from scripts import ROOT

PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
# What a command begins with.
PROGRAMS = ("holdover", "make", "pip", "python", "torchrun", "accelerate")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    kind: str
    """python, yaml, json, commands, or text for a drawing or an output."""
    text: str


def blocks(page: str, kind: str | None = None) -> list[Block]:
    """The page's blocks, of one kind or of all."""
    text = (ROOT / page).read_text()
    made = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        line = text[: match.start()].count("\n") + 1
        made.append(Block(page, line, _kind(match[1], match[2]), match[2]))
    return [block for block in made if kind in (None, block.kind)]


def _kind(language: str, text: str) -> str:
    if language not in ("", "bash", "sh", "console"):
        return language
    lines = [line for line in text.splitlines() if line.strip()]
    return "commands" if language or _is_command(lines[0]) else "text"


def _is_command(text: str) -> bool:
    program, space, _ = text.partition(" ")
    return bool(space) and program in PROGRAMS


def commands(page: str) -> list[list[str]]:
    """The words of the commands to type, in order: of blocks, and of table cells that hold one alone."""
    text = (ROOT / page).read_text()
    places = [
        (match.start(), match[1].split("\n"))
        for match in re.finditer(r"^```\w*\n(.*?)^```$", text, re.M | re.S)
        if _kind("", match[1]) == "commands"
    ]
    places += [
        (match.start(), [match[1]])
        for match in re.finditer(r"(?<=\| )`([^`\n]+)`(?= \|)", text)
        if _is_command(match[1])
    ]
    lines = [line for _, found in sorted(places) for line in found]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def mentions(page: str) -> list[list[str]]:
    """The words of commands in running text, which may leave out what matters elsewhere."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))
    return [shlex.split(span) for span in spans if _is_command(span)]
