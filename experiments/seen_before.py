"""Was a text among the books a model was trained on? Shared word n-grams, with controls on both sides.

    HOLDOVER_DATA=... python experiments/seen_before.py --output results/bundled_model

A training book shares all of its n-grams with the training books, another edition of it most of them.
Books by other authors sometimes share phrases of eight words and hardly ever of thirteen. Controls: one
training book against the others and against all, every test book, and a second novel.
"""

import argparse
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from holdover.runs.provenance import provenance, write_record
from holdover.text.sources import open_source

LENGTHS = (8, 13)
WORD = re.compile(r"[a-z0-9]+")
# Odd, so that multiplication by it loses no information.
BASE = np.uint64(0x9E3779B97F4A7C15)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--data", default="pg19", help="the training books, by name or folder")
    parser.add_argument(
        "--text", type=Path, action="append", default=[], help="another text to look for"
    )
    options = parser.parse_args()
    numbers: dict[str, int] = {}
    books = {name: words_of(text, numbers) for name, text in texts_of(options.data, "train")}
    suspects = {"the_time_machine.txt (bundled)": bundled_novel()}
    suspects |= {path.name: path.read_text() for path in options.text}
    suspects |= {f"test/{name}": text for name, text in texts_of(options.data, "test")}
    words = {name: words_of(text, numbers) for name, text in suspects.items()}
    control = next(iter(books))
    rows = []
    for length in LENGTHS:
        owners = {name: ngrams(ids, length) for name, ids in books.items()}
        everything = np.unique(np.concatenate(list(owners.values())))
        rows += [shared_with(name, ids, length, everything, owners) for name, ids in words.items()]
        rest = np.unique(np.concatenate([v for k, v in owners.items() if k != control]))
        others = {name: grams for name, grams in owners.items() if name != control}
        rows.append(
            shared_with(f"{control}, trained on", books[control], length, everything, owners)
        )
        rows.append(
            shared_with(f"{control} against the others", books[control], length, rest, others)
        )
    record = {
        "record": "shared n-grams",
        "of": "words: letters and digits, without case and punctuation",
        "training_books": len(books),
        "training_words": int(sum(map(len, books.values()))),
        "rows": rows,
        "provenance": provenance(),
    }
    write_record(options.output / "seen_before.json", record)
    for row in rows:
        print(
            f"{row['text']:45} n={row['n']:2}  shared {row['share']:.5f}  one book "
            f"{row['most']:.5f}"
        )


def texts_of(data: str, split: str) -> Iterator[tuple[str, str]]:
    for number, book in enumerate(open_source(data, split).documents()):
        yield book.name or f"{split} {number}", b"".join(book.read()).decode()


def bundled_novel() -> str:
    return (files("holdover") / "bundled" / "the_time_machine.txt").read_text(encoding="utf-8")


def words_of(text: str, numbers: dict[str, int]) -> np.ndarray:
    """[N] a number for every word; the same word has the same number in every text."""
    words = WORD.findall(text.lower().replace("\u2019", "").replace("'", ""))
    return np.array([numbers.setdefault(word, len(numbers) + 1) for word in words], np.uint64)


def ngrams(words: np.ndarray, length: int) -> np.ndarray:
    """Sorted hashes of the different n-grams."""
    if len(words) < length:
        return np.zeros(0, np.uint64)
    count = len(words) - length + 1
    hashes = np.zeros(count, np.uint64)
    for place in range(length):
        hashes = (hashes + words[place : place + count]) * BASE
        hashes ^= hashes >> np.uint64(29)
    return np.unique(hashes)


def shared_with(
    name: str, words: np.ndarray, length: int, everything: np.ndarray, owners: dict[str, np.ndarray]
) -> dict[str, Any]:
    """The shares of a text's n-grams that all training books hold, and that one of them holds."""
    own = ngrams(words, length)
    shared = own[contains(everything, own)]
    by_book = {book: int(contains(grams, shared).sum()) for book, grams in owners.items()}
    most = max(by_book, key=lambda book: by_book[book])
    return {
        "text": name,
        "n": length,
        "ngrams": len(own),
        "shared": len(shared),
        "share": round(len(shared) / len(own), 6),
        "most": round(by_book[most] / len(own), 6),
        "most_in": most,
    }


def contains(sorted_values: np.ndarray, values: np.ndarray) -> np.ndarray:
    if not len(sorted_values):
        return np.zeros(len(values), bool)
    at = np.searchsorted(sorted_values, values).clip(max=len(sorted_values) - 1)
    return sorted_values[at] == values


if __name__ == "__main__":
    main()
