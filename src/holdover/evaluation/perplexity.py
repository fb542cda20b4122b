"""Perplexities and bits, from a sum of nats and the counts of a text.

* The tokenizer decides how many tokens a text has. Between tokenizers only numbers per word, byte or
  character can be compared; perplexity per token is for models that share one.
* White space separates words. WikiText's published counts (245,569 for the test part) add one <eos> per
  line to the 241,211 words; both results are reported, each under its own name.
* Bits per byte are right only if every byte of the text was scored once: a tokenizer that normalises
  white space (XLNet's) scores another text than the one whose bytes were counted.
"""

import math
from collections.abc import Mapping
from typing import Any

COUNTS = ("tokens", "words", "lines", "bytes", "characters")


def summarise(nll_sum: float, counts: Mapping[str, int]) -> dict[str, Any]:
    """Every number that the counts allow; None if a count is missing or zero."""
    _check(nll_sum, counts)
    words, lines = counts.get("words"), counts.get("lines")
    divisors = {name: counts.get(name) for name in COUNTS if name != "lines"}
    divisors["words_and_lines"] = None if words is None or lines is None else words + lines
    nats = {name: nll_sum / count if count else None for name, count in divisors.items()}
    return {
        "perplexity_per_token": _perplexity(nats["tokens"]),
        "perplexity_per_word": _perplexity(nats["words"]),
        "perplexity_per_word_and_line": _perplexity(nats["words_and_lines"]),
        "perplexity_per_byte": _perplexity(nats["bytes"]),
        "bits_per_byte": _bits(nats["bytes"]),
        "bits_per_character": _bits(nats["characters"]),
        "nats": float(nll_sum),
        "counts": divisors,
    }


def _check(nll_sum: float, counts: Mapping[str, int]) -> None:
    if not math.isfinite(nll_sum) or nll_sum < 0:
        raise ValueError(
            f"The sum of losses is {nll_sum} nats, expected a finite number of at least 0: look for "
            f"the window whose logits are not finite."
        )
    unknown = sorted(set(counts) - set(COUNTS))
    if unknown or any(count < 0 for count in counts.values()) or not counts.get("tokens"):
        raise ValueError(
            f"Counts are {dict(counts)}, expected at least one token, nothing negative and no other "
            f"names than {', '.join(COUNTS)}: count the text that was scored."
        )


def _perplexity(nats: float | None) -> float | None:
    if nats is None:
        return None
    try:
        return math.exp(nats)
    except OverflowError:  # an untrained model on very long words
        return math.inf


def _bits(nats: float | None) -> float | None:
    return None if nats is None else nats / math.log(2)
