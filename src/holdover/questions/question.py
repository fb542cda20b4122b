"""A question, the text that answers it, and where in that text its answer stands."""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["span", "yes", "no"]
# What an answer can be, in the order of the classifier's outputs.
KINDS: tuple[Kind, ...] = ("span", "yes", "no")


@dataclass(frozen=True)
class Question:
    id: str
    question: str
    context: str
    answer: str | None = None  # None: nobody has said
    type: str | None = None  # of HotpotQA: bridge or comparison
    level: str | None = None

    @property
    def kind(self) -> Kind | None:
        """How it is answered: yes and no need not stand in the context, all else must."""
        if self.answer is None:
            return None
        word = self.answer.strip().lower()
        return "yes" if word == "yes" else "no" if word == "no" else "span"


def occurrences(answer: str, context: str) -> list[tuple[int, int]]:
    """[start, stop) characters of every place where the answer stands in the context.

    As whole words where it does: the year 19 is not meant by 1984. Else inside words, else in other
    letters; the first of these that is found counts.
    """
    wanted = re.escape(answer.strip())
    if not wanted:
        return []
    for pattern in (rf"(?<!\w){wanted}(?!\w)", wanted, f"(?i){wanted}"):
        found = [match.span() for match in re.finditer(pattern, context)]
        if found:
            return found
    return []


def joined_paragraphs(paragraphs: list[tuple[str, list[str]]]) -> str:
    """One text of paragraphs, each below its title."""
    return "\n".join(
        "\n".join(filter(None, [title.strip(), _joined(sentences)]))
        for title, sentences in paragraphs
    )


def _joined(sentences: list[str]) -> str:
    """HotpotQA's sentences bring the space between them; those of other files may not."""
    text = ""
    for sentence in sentences:
        between = "" if not text or sentence[:1].isspace() or text[-1:].isspace() else " "
        text += between + sentence
    return text.strip()
