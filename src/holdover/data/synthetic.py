"""recall: a corpus that cannot be learnt without a memory, and easily with one.

A document is three windows long. The first states a fact, the second and third ask for it, and only
the answers are scored: a model that forgets its windows can do no better than guess.
"""

import hashlib
import random
from collections.abc import Iterator

from .document import Document

SYMBOLS = b"ABCDEFGHIJKLMNOP"
CHANCE = 1 / len(SYMBOLS)
FILLER = b"abcdefgh "
DOCUMENTS = {"train": 4096, "valid": 256, "test": 256}
# Bytes: a few of filler, the mark, the fact.
SHORTEST = 6


class Recall:
    name = "recall"
    has_splits = True

    def __init__(self, split: str, window: int, seed: int = 0) -> None:
        if split not in DOCUMENTS:
            raise ValueError(f"recall has the splits {', '.join(DOCUMENTS)}, not {split!r}.")
        if window < SHORTEST:
            raise ValueError(f"recall needs windows of at least {SHORTEST} tokens, not {window}.")
        self.split = split
        self.window = window
        self.seed = seed

    def fingerprint(self) -> str:
        about = f"recall.v1 {self.split} {self.window} {self.seed}"
        return hashlib.sha256(about.encode()).hexdigest()

    def size(self) -> int:
        return DOCUMENTS[self.split] * (3 * self.window + 1)

    def documents(self) -> Iterator[Document]:
        draw = random.Random(f"{self.seed} {self.split}")
        for number in range(DOCUMENTS[self.split]):
            fact = bytes([draw.choice(SYMBOLS)])
            parts = []
            for mark in (b"=", b"?", b"?"):
                filler = bytes(draw.choices(FILLER, k=self.window - 2))
                parts.append(filler + mark + fact)
            text = b"".join(parts) + b"."
            ends = (2 * self.window, 3 * self.window)
            yield Document(
                f"{self.split}-{number}",
                lambda text=text: iter((text,)),
                tuple((end - 1, end) for end in ends),
            )
