"""Collapse: a model that has learned only how frequent symbols are.

A published reproduction reports the entropy of single characters as its result. The input of its
attention did not depend on the position, and layer by layer the single token was lost; the number alone
looked plausible. So a loss is compared with that entropy. If the two agree, the report includes how much
of each layer's output differs from token to token.
"""

from typing import Any

import numpy as np
import torch

from ..text.tokens import Tokens

# Bits between a loss and the entropy of single symbols.
NEAR = 0.05
# Vocabularies of characters and bytes; in larger ones many symbols are too rare to count.
MOST_SYMBOLS = 512
# Tokens on which the layers' outputs are measured.
MEASURED_TOKENS = 1024


def check_collapse(
    model: Any, tokens: Tokens, nats: float, device: torch.device
) -> dict[str, Any] | None:
    """Compare a character model's loss per token with the unigram entropy; None for other models."""
    if tokens.encoder.vocabulary > MOST_SYMBOLS:
        return None
    bits, unigram = nats / float(np.log(2)), unigram_bits(tokens)
    result = {"bits": bits, "unigram_bits": unigram, "collapsed": abs(bits - unigram) < NEAR}
    if result["collapsed"]:
        result["token_specific"] = token_specific(model, tokens, device)
    return result


def unigram_bits(tokens: Tokens) -> float:
    """The entropy of the distribution of single symbols in the text."""
    counts = np.bincount(np.asarray(tokens.ids), minlength=1)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


@torch.no_grad()
def token_specific(model: Any, tokens: Tokens, device: torch.device) -> list[float]:
    """For the embeddings and each layer: the share of the output's squared norm that differs from token
    to token. At 0 every position has the same output."""
    ids = np.asarray(tokens.ids[: min(MEASURED_TOKENS, int(tokens.bounds[1]))]).astype(np.int64)
    was_training = model.training
    model.eval()
    try:
        read = model(torch.from_numpy(ids)[None].to(device), output_hidden_states=True)
    finally:
        model.train(was_training)
    shares = []
    for hidden in read.hidden_states:
        output = hidden[0].double()
        total = output.square().sum()
        specific = (output - output.mean(0)).square().sum()
        shares.append(float(specific / total) if total > 0 else 0.0)
    return shares


def collapse_sentence(collapse: dict[str, Any]) -> str:
    shares = ", ".join(f"{share:.1e}" for share in collapse["token_specific"])
    return (
        f"COLLAPSED: {collapse['bits']:.3f} bits per token, where the entropy of single symbols is "
        f"{collapse['unigram_bits']:.3f}: the model has learned how frequent they are and nothing else. "
        f"Share of the embeddings' and layers' output that differs from token to token: {shares}."
    )
