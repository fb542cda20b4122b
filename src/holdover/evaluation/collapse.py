"""Has a model learnt nothing but how frequent symbols are?

A published reproduction reports the entropy of single characters as its result: what went into its
attention did not depend on the position, and layer by layer nothing of the single token was left. The
number alone looked like a result. So it is compared with that entropy, and where the two meet, the share
of what each layer says that differs from token to token is told.
"""

from typing import Any

import numpy as np
import torch

from ..text.tokens import Tokens

# Bits between a loss and the entropy of single symbols.
NEAR = 0.05
# Vocabularies of characters and bytes; in larger ones single symbols are too rare to count.
MOST_SYMBOLS = 512
# Tokens that are read to see what the layers say.
LOOKED_AT = 1024


def check_collapse(
    model: Any, tokens: Tokens, nats: float, device: torch.device
) -> dict[str, Any] | None:
    """What can be said of a character model with this loss a token; None for other vocabularies."""
    if tokens.encoder.vocabulary > MOST_SYMBOLS:
        return None
    bits, unigram = nats / float(np.log(2)), unigram_bits(tokens)
    found = {"bits": bits, "unigram_bits": unigram, "collapsed": abs(bits - unigram) < NEAR}
    if found["collapsed"]:
        found["token_specific"] = token_specific(model, tokens, device)
    return found


def unigram_bits(tokens: Tokens) -> float:
    """The entropy of the text's symbols, each taken alone."""
    counts = np.bincount(np.asarray(tokens.ids), minlength=1)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


@torch.no_grad()
def token_specific(model: Any, tokens: Tokens, device: torch.device) -> list[float]:
    """For the embeddings and each layer: the part of its outputs' squares that differs from token to
    token. 1 is all of it; at 0 every position says the same."""
    ids = np.asarray(tokens.ids[: min(LOOKED_AT, int(tokens.bounds[1]))]).astype(np.int64)
    was_training = model.training
    model.eval()
    try:
        read = model(torch.from_numpy(ids)[None].to(device), output_hidden_states=True)
    finally:
        model.train(was_training)
    shares = []
    for hidden in read.hidden_states:
        said = hidden[0].double()
        whole = said.square().sum()
        apart = (said - said.mean(0)).square().sum()
        shares.append(float(apart / whole) if whole > 0 else 0.0)
    return shares


def collapse_sentence(found: dict[str, Any]) -> str:
    shares = ", ".join(f"{share:.1e}" for share in found["token_specific"])
    return (
        f"COLLAPSED: {found['bits']:.3f} bits a token, and the entropy of single symbols is "
        f"{found['unigram_bits']:.3f}: the model has learnt how frequent they are and nothing else. "
        f"Share of what embeddings and layers say that differs from token to token: {shares}."
    )
