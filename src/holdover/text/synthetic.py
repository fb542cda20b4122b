"""Corpora that need a memory to be learnt, and are easy with one. Only answers are scored.

* recall: the first window holds a fact, and the second and third ask for it. A model that forgets
  earlier windows can only guess. recall-N asks in each of the N windows after the first. Every answer
  is in the text, so the state must carry the fact only to the next question.
* once-N: a fact, and one question 1 to N windows later; after-N: exactly N windows later. The text
  between does not repeat the fact, so the state must carry it all the way.
* majority: texts of one to eight windows. At the end each asks which of two letters was more frequent.
"""

import hashlib
import random
import re
from collections.abc import Iterator

from ..tokenization.document import Document

SYMBOLS = b"ABCDEFGHIJKLMNOP"
CHANCE = 1 / len(SYMBOLS)
FILLER = b"abcdefgh "
DOCUMENTS = {"train": 4096, "valid": 256, "test": 256}
# In bytes: some filler, the mark, the fact.
SHORTEST = 6
# The most windows that a split holds: there are fewer long texts than short ones.
MOST_WINDOWS = {"recall": 2**16, "once": 2**18}
LONGEST_VOTE = 8
# The share of a text's letters that vote, and the expected share of votes for the drawn side.
VOTING, LEADING = 0.25, 0.65


class Synthetic:
    """The base of these corpora: they have splits, and every text is drawn from a seed."""

    has_splits = True
    name = ""

    def __init__(self, split: str, window: int, seed: int = 0) -> None:
        if split not in DOCUMENTS:
            raise ValueError(f"{self.name} has the splits {', '.join(DOCUMENTS)}, not {split!r}.")
        if window < SHORTEST:
            raise ValueError(
                f"{self.name} needs windows of at least {SHORTEST} tokens, not {window}."
            )
        self.split = split
        self.window = window
        self.seed = seed

    def fingerprint(self) -> str:
        about = f"{self.name}.v1 {self.split} {self.window} {self.seed}"
        return hashlib.sha256(about.encode()).hexdigest()

    def _document(self, number: int, text: bytes, ends: tuple[int, ...]) -> Document:
        """A document in which the byte before each of the ends is scored."""
        return Document(
            f"{self.split}-{number}",
            lambda: iter((text,)),
            tuple((end - 1, end) for end in ends),
        )


class Recall(Synthetic):
    def __init__(self, split: str, window: int, seed: int = 0, asks: int = 2) -> None:
        self.asks = asks
        self.name = "recall" if asks == 2 else f"recall-{asks}"
        super().__init__(split, window, seed)
        self.count = max(1, min(DOCUMENTS[split], MOST_WINDOWS["recall"] // (asks + 1)))

    def size(self) -> int:
        return self.count * ((1 + self.asks) * self.window + 1)

    def documents(self) -> Iterator[Document]:
        draw = random.Random(f"{self.seed} {self.split}")
        for number in range(self.count):
            fact = bytes([draw.choice(SYMBOLS)])
            marks = (b"=", *[b"?"] * self.asks)
            parts = [_filler(draw, self.window - 2) + mark + fact for mark in marks]
            ends = tuple((2 + ask) * self.window for ask in range(self.asks))
            yield self._document(number, b"".join(parts) + b".", ends)


class Once(Synthetic):
    """A fact, and one question about it `nearest` to `farthest` windows later."""

    def __init__(
        self, split: str, window: int, seed: int = 0, nearest: int = 1, farthest: int = 8
    ) -> None:
        self.name = f"after-{farthest}" if nearest == farthest else f"once-{farthest}"
        super().__init__(split, window, seed)
        most = MOST_WINDOWS["once"] // (farthest + 1)
        self.distances = range(nearest, farthest + 1)
        # Near questions help to learn far ones, so training has more of them.
        even = split == "test"
        self.weights = [1.0 if even else 1 / distance for distance in self.distances]
        # For each distance as many texts as other corpora have in total.
        self.count = max(1, min(DOCUMENTS[split] * len(self.distances), most))

    def size(self) -> int:
        weighed = zip(self.distances, self.weights, strict=True)
        mean = sum(distance * weight for distance, weight in weighed) / sum(self.weights)
        return int(self.count * ((1 + mean) * self.window + 1))

    def documents(self) -> Iterator[Document]:
        draw = random.Random(f"{self.seed} {self.split} {self.name}")
        for number in range(self.count):
            fact = bytes([draw.choice(SYMBOLS)])
            (distance,) = draw.choices(self.distances, self.weights)
            stated = _filler(draw, self.window - 2) + b"=" + fact
            between = _filler(draw, distance * self.window - 2)
            text = stated + between + b"?" + fact
            yield self._document(number, text + b".", (len(text),))


class Majority(Synthetic):
    name = "majority"

    def size(self) -> int:
        return DOCUMENTS[self.split] * ((1 + LONGEST_VOTE) * self.window // 2 + 1)

    def documents(self) -> Iterator[Document]:
        draw = random.Random(f"{self.seed} {self.split}")
        for number in range(DOCUMENTS[self.split]):
            length = draw.randint(1, LONGEST_VOTE) * self.window
            votes = b""
            while votes.count(b"A") == votes.count(b"B"):
                votes = _ballot(draw, length - 2)
            answer = b"A" if votes.count(b"A") > votes.count(b"B") else b"B"
            yield self._document(number, votes + b"?" + answer + b".", (length,))


def _filler(draw: random.Random, length: int) -> bytes:
    return bytes(draw.choices(FILLER, k=length))


def _ballot(draw: random.Random, length: int) -> bytes:
    leading, other = draw.choice((b"AB", b"BA"))
    drawn = [draw.random() for _ in range(length)]
    filler = draw.choices(FILLER, k=length)
    return bytes(
        (leading if share < LEADING * VOTING else other) if share < VOTING else letter
        for share, letter in zip(drawn, filler, strict=True)
    )


def open_synthetic(spec: str, split: str, window: int) -> Synthetic | None:
    """The synthetic corpus of that name, or None for another name."""
    if spec == Majority.name:
        return Majority(split, window)
    match = re.fullmatch(r"recall(?:-([1-9]\d*))?", spec)
    if match is not None:
        return Recall(split, window, asks=int(match[1] or 2))
    match = re.fullmatch(r"(once|after)-([1-9]\d*)", spec)
    if match is None:
        return None
    farthest = int(match[2])
    nearest = 1 if match[1] == "once" else farthest
    return Once(split, window, nearest=nearest, farthest=farthest)
