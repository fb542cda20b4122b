"""A long text encoded in overlapping windows whose ids are those of the whole text.

* A tokenizer decides locally: some characters away from where a window was cut its tokens are those
  of the whole text. Two neighbours are joined where their tokens agree on both sides of the seam.
* Where they agree nowhere (a run of one letter longer than the overlap, say) the windows are melted
  into one and encoded again, doubling: never wrong, at worst as large as the text.
* Windows do not depend on each other, so several are encoded at once.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

# Short enough that a book of some hundred thousand characters keeps several cores busy.
CHUNK = 1 << 16  # new characters a window
OVERLAP = 1 << 11  # characters that two neighbours both read, at most
AGREEING = 4  # tokens on each side of a seam
BATCH = min(16, os.cpu_count() or 1)


@dataclass(frozen=True)
class Encoded:
    """The tokens of the characters from `origin` on."""

    origin: int
    text: str
    ids: np.ndarray
    starts: np.ndarray  # first character of every token, counted from the text's beginning
    stops: np.ndarray


# Texts to (ids, [(start, stop), ...]) each.
Encode = Callable[[list[str]], list[tuple[list[int], list[tuple[int, int]]]]]


def encode_in_windows(
    texts: Iterable[str], encode: Encode, chunk: int = CHUNK
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(ids, starts, stops) in pieces; `texts` are the pieces of one text."""
    overlap = min(OVERLAP, chunk)
    windows = _encoded(_windows(texts, chunk, overlap), encode)
    left = next(windows, None)
    begin = 0  # first token of `left` that was not given out yet
    while left is not None:
        right = next(windows, None)
        if right is None:
            end, after = len(left.ids), 0
        else:
            hook = _seam(left, right)
            if hook is None:
                left = _melted(left, right, windows, encode)
                continue
            end, after = hook
        kept = slice(begin, end)
        yield left.ids[kept], left.starts[kept], left.stops[kept]
        left, begin = right, after


def _windows(texts: Iterable[str], chunk: int, overlap: int) -> Iterator[tuple[int, str]]:
    """(position, text): each begins with the last `overlap` characters of the one before."""
    waiting: list[str] = []
    origin = size = 0
    fresh = False
    for text in texts:
        waiting.append(text)
        size += len(text)
        fresh = fresh or bool(text)
        while size >= chunk + overlap:
            whole = "".join(waiting)
            yield origin, whole[: chunk + overlap]
            origin += chunk
            waiting = [whole[chunk:]]
            size -= chunk
            fresh = size > overlap
    if fresh:
        yield origin, "".join(waiting)


def _encoded(windows: Iterator[tuple[int, str]], encode: Encode) -> Iterator[Encoded]:
    while batch := list(islice(windows, BATCH)):
        for (origin, text), (ids, offsets) in zip(
            batch, encode([text for _, text in batch]), strict=True
        ):
            spans = np.asarray(offsets, dtype=np.int64).reshape(-1, 2) + origin
            yield Encoded(origin, text, np.asarray(ids, np.int64), spans[:, 0], spans[:, 1])


def _melted(left: Encoded, right: Encoded, windows: Iterator[Encoded], encode: Encode) -> Encoded:
    """Left and what follows it as one window, at least twice as long where there is so much."""
    parts = [left.text]
    stop = left.origin + len(left.text)
    wanted = left.origin + 2 * len(left.text)
    following: Encoded | None = right
    while following is not None:
        parts.append(following.text[stop - following.origin :])
        stop += len(parts[-1])
        following = next(windows, None) if stop < wanted else None
    return next(_encoded(iter([(left.origin, "".join(parts))]), encode))


def _seam(left: Encoded, right: Encoded) -> tuple[int, int] | None:
    """(tokens to take of left, tokens to skip of right), or None where they do not agree."""
    # A character can be several tokens: the first of them is where one may join.
    ours, first_of_ours = np.unique(left.starts, return_index=True)
    theirs, first_of_theirs = np.unique(right.starts, return_index=True)
    places, i, j = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    if not len(places):
        return None
    middle = (right.origin + left.origin + len(left.text)) / 2
    # Beside white space first, and as far from both cuts as can be.
    order = np.argsort(np.abs(places - middle)).tolist()
    for beside_space in (True, False):
        for number in order:
            if _beside_space(right.text, int(places[number]) - right.origin) == beside_space:
                hook = int(first_of_ours[i[number]]), int(first_of_theirs[j[number]])
                if _agree(left, right, *hook):
                    return hook
    return None


def _beside_space(text: str, at: int) -> bool:
    return any(character.isspace() for character in text[max(at - 1, 0) : at + 1])


def _agree(left: Encoded, right: Encoded, i: int, j: int) -> bool:
    if min(i, j) < AGREEING or min(len(left.ids) - i, len(right.ids) - j) < AGREEING:
        return False
    ours, theirs = slice(i - AGREEING, i + AGREEING), slice(j - AGREEING, j + AGREEING)
    return (
        np.array_equal(left.ids[ours], right.ids[theirs])
        and np.array_equal(left.starts[ours], right.starts[theirs])
        and np.array_equal(left.stops[ours], right.stops[theirs])
    )
