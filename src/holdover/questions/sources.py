"""Sources of questions: a file, or HotpotQA by name, and their splits.

* hotpotqa is a subset in a data directory, with our own split: do not compare it with the leaderboard.
* A file has no splits: training holds its end out, unless --validation names another file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..text.corpora import data_directory
from ..tokenization.files import sha256
from .data_options import QuestionOptions
from .files import read_questions
from .question import Question

HOTPOTQA = "hotpotqa"
# sha256 of each split's file.
FILES = {
    "train": "ae9fb9e792ed3462e467e6b523c8597b6a2071772962ec24fe0f5b527763d647",
    "valid": "93e21d140849a66f90d66fc48fc591eea47d4148e8d3569f6263b3c05aa00d7e",
    "test": "db3a80eae84d42c12ec88dfa6ef059f0685d8202d45e4e6a15e69bdcabe93a5e",
}
NOTE = (
    "1,192 / 200 / 300 questions of HotpotQA's distractor setting, our own split, mostly of the "
    "official development set: not comparable with the leaderboard; CC BY-SA 4.0"
)


@dataclass(frozen=True)
class Questions:
    """Questions, and the description of their source for records."""

    items: tuple[Question, ...]
    about: dict[str, Any]

    def __len__(self) -> int:
        return len(self.items)


def open_questions(options: QuestionOptions, split: str, data: str | None = None) -> Questions:
    """The questions of a split (hotpotqa), or all of a file."""
    spec = data or options.data
    if not spec:
        raise ValueError("--data is missing: give for example --data questions.json.")
    path = Path(spec)
    if path.exists():
        items: Sequence[Question] = read_questions(path)
        about = {"source": path.name, "split": "all", "sha256": sha256(path), "note": None}
    elif spec == HOTPOTQA:
        path = _named_file(split, data_directory(options.data_dir))
        items = read_questions(path)
        about = {"source": HOTPOTQA, "split": split, "sha256": FILES[split], "note": NOTE}
    else:
        near = get_close_matches(spec.lower(), [HOTPOTQA], n=1)
        hint = f"; did you mean {HOTPOTQA}?" if near else "."
        raise ValueError(f"--data {spec} is neither a file of questions nor {HOTPOTQA}{hint}")
    items = tuple(items[: options.questions])
    return Questions(items, {**about, "questions": len(items)})


def training_questions(
    options: QuestionOptions, validation: str | None, held_out: float
) -> tuple[Questions, Questions]:
    """The questions to learn from and those to validate on."""
    training = open_questions(options, "train")
    if validation is not None:
        return training, open_questions(options, "valid", validation)
    if training.about["split"] != "all":
        return training, open_questions(options, "valid")
    count = len(training)
    kept = count - max(1, round(held_out * count))
    if kept < 1:
        raise ValueError(
            f"{training.about['source']} holds {count} question: give at least 2, one to learn from and "
            "one to validate on, or give a file to validate on with --validation."
        )
    return _part(training, slice(0, kept)), held_out_end(training, kept)


def held_out_end(questions: Questions, kept: int) -> Questions:
    """The end of a file, which training held out."""
    return _part(questions, slice(kept, None))


def _part(questions: Questions, part: slice) -> Questions:
    items = questions.items[part]
    first = part.start
    about = {"part": [first, first + len(items)], "questions": len(items)}
    return Questions(items, {**questions.about, **about})


def _named_file(split: str, folder: Path | None) -> Path:
    file = f"{HOTPOTQA}/{split}.jsonl.xz"
    if folder is None:
        raise OSError(
            f"{HOTPOTQA} was not found: put {file} into a folder and name that folder with --data-dir "
            "or HOLDOVER_DATA, or give a file of questions."
        )
    path = folder / file
    if not path.is_file():
        raise OSError(f"{HOTPOTQA} was not found: put {file} into the data directory {folder}.")
    checksum = sha256(path)
    if checksum != FILES[split]:
        raise ValueError(
            f"{path} is not the file that {HOTPOTQA} expects: its sha256 is {checksum}, expected was "
            f"{FILES[split]}. Download it again, or give the file's path as --data to read it as it is."
        )
    return path
