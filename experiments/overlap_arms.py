"""The arms of the overlap experiment: kinds of models, their names, sizes of caches."""

from typing import Any

from language import SCALES, STOCK

KINDS = ("plain", "recurrent")
# The number of last tokens whose keys and values are kept (one token takes more memory than a state of
# one embedding); the number of a document's first tokens that are kept with them, as published for
# sliding caches; and how much of each document is read.
KEPT = {"smoke": (0, 1, 8), "real": (0, 1, 30, 300)}
FIRST = 4
READ_WITH_CACHE = 30_000
# At these scales a plain model is trained at the largest overlap, too: it separates the effect of such
# training from the effect of the state.
TRAINED_ALIKE = ("smoke", "real")


def tokens_with_cache(scale: str, text: str) -> int:
    """Tokens of a document that are read with a cache."""
    limit = SCALES[scale].texts[text].limits.get("document_tokens", READ_WITH_CACHE)
    return min(limit, READ_WITH_CACHE)


def arms(scale: str) -> list[tuple[str, int, int, tuple[int, ...]]]:
    """Kind, window, training overlap, evaluation overlaps."""
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


def cached_loss(first: int, kept: int) -> str:
    """The metric of the loss with a cache of these tokens."""
    return f"loss@first {first}, last {kept}"
