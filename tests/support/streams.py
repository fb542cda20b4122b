"""Small token streams for tests, without files or tokenizers."""

import numpy as np

from holdover.text.tokens import COUNTS, Tokens
from holdover.tokenization.encoders import ByteEncoder


def stream(*lengths: int, vocabulary: int = 61, seed: int = 0, scored=None) -> Tokens:
    """Documents of random ids (5 and above: no special ones)."""
    ids = np.random.default_rng(seed).integers(5, vocabulary, sum(lengths)).astype(np.uint16)
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    counts = {name: np.array(lengths) for name in COUNTS}
    about = {"source": "random", "split": "test", "sha256": "0"}
    return Tokens(ids, bounds, counts, ByteEncoder(), scored, about)
