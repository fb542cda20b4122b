"""What the overlap experiment compares: kinds of models, their names, what is kept of a cache."""

from typing import Any

from language import SCALES, STOCK

KINDS = ("plain", "recurrent")
# Last tokens whose keys and values are kept, one of them being more memory than a state of one
# embedding; how many of a document's first tokens beside them, as published for caches that slide; and
# how much is read of each document.
KEPT = {"smoke": (0, 1, 8), "real": (0, 1, 30, 300)}
FIRST = 4
READ_WITH_CACHE = 30_000
# Scales at which a plain model too is trained at the largest overlap, to tell what that does to a model
# from what its state does.
TRAINED_ALIKE = ("smoke", "real")


def tokens_behind_cache(scale: str, text: str) -> int:
    """Tokens of a document that are read behind a cache."""
    limit = SCALES[scale].texts[text].limits.get("document_tokens", READ_WITH_CACHE)
    return min(limit, READ_WITH_CACHE)


def arms(scale: str) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """Kind, window, overlap of the training, overlaps it is read at."""
    chosen = SCALES[scale]
    plain = [
        ("plain", chosen.window, 0, chosen.plain_overlaps),
        ("plain", chosen.positions, 0, (0,)),
    ]
    recurrent = [("recurrent", chosen.window, overlap, (overlap,)) for overlap in chosen.overlaps]
    most = chosen.overlaps[-1]
    alike = [("plain", chosen.window, most, (most,))] if scale in TRAINED_ALIKE else []
    return plain + recurrent + alike


def named(kind: str, text: str, overlap: int = 0, full: bool = False) -> str:
    if kind == "plain" and overlap:
        return f"plain {text} trained at overlap {overlap}"
    if kind in ("plain", "cache", STOCK):
        return f"{kind} {text}{' all positions' if full else ''}"
    return f"recurrent {text} overlap {overlap}"


def carry(kind: str, window: int, overlap: int) -> dict[str, Any]:
    return {
        "carry": "none" if kind == "plain" else "pooled",
        "window": window,
        "overlap": overlap,
    }


def behind(first: int, kept: int) -> str:
    """The loss behind a cache of those tokens."""
    return f"loss@first {first}, last {kept}"
