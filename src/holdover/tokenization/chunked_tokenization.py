"""A long text encoded in overlapping chunks, with the same ids as the whole text.

* Tokenizers decide locally: a few characters away from a cut, the tokens of a chunk are those of the
  whole text. Two neighbours are joined at a position where their tokens agree on both sides.
* If they agree nowhere (for example in a run of one letter longer than the overlap), the two chunks are
  merged and encoded again, doubling in size. The result is never wrong, at worst one chunk is the text.
* Chunks do not depend on each other, so several are encoded at once.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

# Short enough that a book of some hundred thousand characters keeps several cores busy.
CHUNK = 1 << 16  # new characters per chunk
OVERLAP = 1 << 11  # characters that two neighbours share, at most
AGREEING = 4  # tokens on each side of a join
BATCH = min(16, os.cpu_count() or 1)


@dataclass(frozen=True)
class Encoded:
    """The tokens of a chunk that begins at the character `origin`."""

    origin: int
    text: str
    ids: np.ndarray
    starts: np.ndarray  # first character of every token, counted from the text's beginning
    stops: np.ndarray


# For each text (ids, [(start, stop), ...]).
Encode = Callable[[list[str]], list[tuple[list[int], list[tuple[int, int]]]]]


def encode_in_windows(
    texts: Iterable[str], encode: Encode, chunk: int = CHUNK
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(ids, starts, stops) in pieces; `texts` are the pieces of one text."""
    overlap = min(OVERLAP, chunk)
    windows = _encoded(_windows(texts, chunk, overlap), encode)
    left = next(windows, None)
    begin = 0  # first token of `left` that was not yielded yet
    while left is not None:
        right = next(windows, None)
        if right is None:
            end, after = len(left.ids), 0
        else:
            join = _join(left, right)
            if join is None:
                left = _merged(left, right, windows, encode)
                continue
            end, after = join
        kept = slice(begin, end)
        yield left.ids[kept], left.starts[kept], left.stops[kept]
        left, begin = right, after


def _windows(texts: Iterable[str], chunk: int, overlap: int) -> Iterator[tuple[int, str]]:
    """(position, text) of each chunk, which begins with the last `overlap` characters before it."""
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


def _merged(left: Encoded, right: Encoded, windows: Iterator[Encoded], encode: Encode) -> Encoded:
    """Left and the chunks after it as one, twice as long as left unless the text ends before."""
    parts = [left.text]
    stop = left.origin + len(left.text)
    least = left.origin + 2 * len(left.text)
    following: Encoded | None = right
    while following is not None:
        parts.append(following.text[stop - following.origin :])
        stop += len(parts[-1])
        following = next(windows, None) if stop < least else None
    return next(_encoded(iter([(left.origin, "".join(parts))]), encode))


def _join(left: Encoded, right: Encoded) -> tuple[int, int] | None:
    """(tokens to take of left, tokens to skip of right), or None if they agree nowhere."""
    # A character can be several tokens. Chunks may be joined only before the first of them.
    ours, first_of_ours = np.unique(left.starts, return_index=True)
    theirs, first_of_theirs = np.unique(right.starts, return_index=True)
    places, i, j = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    if not len(places):
        return None
    middle = (right.origin + left.origin + len(left.text)) / 2
    # Positions next to white space first, then those far from both cuts.
    order = np.argsort(np.abs(places - middle)).tolist()
    for next_to_space in (True, False):
        for number in order:
            if _next_to_space(right.text, int(places[number]) - right.origin) == next_to_space:
                join = int(first_of_ours[i[number]]), int(first_of_theirs[j[number]])
                if _agree(left, right, *join):
                    return join
    return None


def _next_to_space(text: str, at: int) -> bool:
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
