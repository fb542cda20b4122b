"""Files of questions in HotpotQA's format: one JSON list, or one JSON object a line; plain, .xz, .gz.

    {"_id": ..., "question": ..., "answer": ..., "context": [[title, [sentence, ...]], ...]}

* type and level are kept if they are there; other fields are ignored.
* A record that cannot be used is refused with its number (from 1), its id and the reason.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..tokenization.files import opened
from .question import Question, joined_paragraphs

EXPECTED = "[[title, [sentence, ...]], ...]"


def read_questions(path: Path, answered: bool = True) -> list[Question]:
    """All questions of a file; with `answered`, refuse questions without an answer."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name one file of questions in it.")
    with opened(path) as file:
        content = file.read()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path.name} is not UTF-8 at byte {error.start}: save it as UTF-8."
        ) from error
    questions = [
        _question(record, f"{path.name}, record {number}", number, answered)
        for number, record in enumerate(_records(text, path.name), 1)
    ]
    if not questions:
        raise ValueError(f"{path.name} holds no questions: a JSON list of records was expected.")
    return questions


def _records(text: str, name: str) -> Iterator[Any]:
    if text.lstrip().startswith("["):
        yield from _parsed(text, name, "a JSON list of records was expected")
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield _parsed(line, f"{name}, line {number},", "every line must be one JSON object")


def _parsed(text: str, where: str, expected: str) -> Any:
    try:
        return json.loads(text)
    # RecursionError: brackets a thousand deep.
    except (ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{where} is not JSON ({reason}): {expected}.") from error


def _question(record: Any, where: str, number: int, answered: bool) -> Question:
    if not isinstance(record, dict):
        raise ValueError(
            f"{where} is a JSON {type(record).__name__}: an object with question, answer and context "
            "was expected."
        )
    own = str(record.get("_id") or record.get("id") or number)
    where = where if own == str(number) else f"{where} ({own})"
    question = record.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"{where} has no question: its field question must hold a text.")
    answer = record.get("answer")
    if answer is None and answered:
        raise ValueError(
            f"{where} has no answer to learn from or to compare with: add its field answer, or remove "
            "the record."
        )
    if answer is not None and (not isinstance(answer, str) or not answer.strip()):
        raise ValueError(
            f"{where} has an empty answer, or one that is not a text: write it as a text."
        )
    context = joined_paragraphs(_paragraphs(record.get("context"), where))
    if not context:
        raise ValueError(f"{where} has nothing to read: its context is empty.")
    kind, level = (
        value if isinstance(value := record.get(name), str) else None for name in ("type", "level")
    )
    return Question(own, question.strip(), context, answer, kind, level)


def _paragraphs(given: Any, where: str) -> list[tuple[str, list[str]]]:
    if isinstance(given, dict) and {"title", "sentences"} <= set(given):
        # The hub's copy of HotpotQA has two lists: titles and sentences.
        given = list(zip(given["title"], given["sentences"], strict=False))
    if not isinstance(given, list):
        raise ValueError(f"{where} has no context: a list {EXPECTED} was expected.")
    for place, paragraph in enumerate(given, 1):
        right = (
            isinstance(paragraph, list | tuple)
            and len(paragraph) == 2
            and isinstance(paragraph[0], str)
            and isinstance(paragraph[1], list)
            and all(isinstance(sentence, str) for sentence in paragraph[1])
        )
        if not right:
            raise ValueError(
                f"{where} has a malformed paragraph {place} in its context: {EXPECTED} was expected."
            )
    return [(title, sentences) for title, sentences in given]
