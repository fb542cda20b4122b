"""A question, the text that answers it, and where the answer occurs in that text."""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["span", "yes", "no"]
# The kinds of answers, in the order of the classifier's outputs.
KINDS: tuple[Kind, ...] = ("span", "yes", "no")


@dataclass(frozen=True)
class Question:
    id: str
    question: str
    context: str
    answer: str | None = None  # None: not known
    type: str | None = None  # HotpotQA's: bridge or comparison
    level: str | None = None

    @property
    def kind(self) -> Kind | None:
        """The kind of its answer: a span must occur in the context, yes and no need not."""
        if self.answer is None:
            return None
        word = self.answer.strip().lower()
        return "yes" if word == "yes" else "no" if word == "no" else "span"


def occurrences(answer: str, context: str) -> list[tuple[int, int]]:
    """[start, stop) characters of every occurrence of the answer in the context.

    Whole words come first: 1984 does not contain the number 19. If there are none, occurrences inside
    words count; if there are none either, those in other letter case.
    """
    escaped = re.escape(answer.strip())
    if not escaped:
        return []
    for pattern in (rf"(?<!\w){escaped}(?!\w)", escaped, f"(?i){escaped}"):
        spans = [match.span() for match in re.finditer(pattern, context)]
        if spans:
            return spans
    return []


def joined_paragraphs(paragraphs: list[tuple[str, list[str]]]) -> str:
    """One text of all paragraphs, each below its title."""
    return "\n".join(
        "\n".join(filter(None, [title.strip(), _joined(sentences)]))
        for title, sentences in paragraphs
    )


def _joined(sentences: list[str]) -> str:
    """HotpotQA's sentences contain the spaces between them; those of other files may not."""
    text = ""
    for sentence in sentences:
        between = "" if not text or sentence[:1].isspace() or text[-1:].isspace() else " "
        text += between + sentence
    return text.strip()
