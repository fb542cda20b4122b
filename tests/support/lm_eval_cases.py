"""The harness's adapter on small models, and what they write, found the slow way."""

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from evaluations import subwords
from holdover.evaluation.scoring import score
from holdover.language.lm_eval import HoldoverLM
from holdover.tokenization.encoders import ByteEncoder
from streams import stream
from tiny import attach, build

WINDOW = 9
CPU = torch.device("cpu")
CARRIES = {
    "plain": {"carry": "none"},
    "pooled": {},
    "tokens": {"carry": "tokens", "slots": 2},
}


def byte_model(**options):
    return attach(build("gpt2", vocab_size=256), window=WINDOW, **options).double()


def adapter(model=None, **options):
    chosen = {"tokenizer": ByteEncoder(), "batch_size": 3, "device": "cpu", **options}
    return HoldoverLM(byte_model() if model is None else model, **chosen)


def requests(kind, *arguments):
    return [Instance(kind, {}, args, number) for number, args in enumerate(arguments)]


def tokens_of(texts, prefix=b"\n"):
    """The texts as a stream, each behind what stands before it."""
    contents = [prefix + text.encode() for text in texts]
    made = stream(*map(len, contents), vocabulary=256)
    made.ids[:] = np.frombuffer(b"".join(contents), np.uint8)
    return made


def plain_pair():
    """The same stock weights as the harness runs them and as holdover does."""
    encoder = subwords()
    stock = build("gpt2", vocab_size=encoder.vocabulary)
    theirs = HFLM(pretrained=stock, tokenizer=encoder.tokenizer, max_length=WINDOW, batch_size=2)
    ours = attach(build("gpt2", vocab_size=encoder.vocabulary), window=WINDOW, carry="none")
    return theirs, HoldoverLM(ours, tokenizer=encoder, batch_size=2, device="cpu"), encoder


def continuation(model, text, length, reset_every=None):
    """Greedy bytes, the whole text being read anew for each of them."""
    ids = list(text)
    for _ in range(length):
        # One more target, whatever it is, so that the last position is one that is scored.
        tokens = tokens_of(["?"], prefix=bytes(ids))
        ids.append(int(_logits_behind(model, tokens, reset_every).argmax()))
    return bytes(ids[len(text) :])


def _logits_behind(model, tokens, reset_every):
    """[V] logits from which the last token of the stream is scored."""
    kept = []
    score(
        model,
        tokens,
        rows=1,
        device=CPU,
        reset_every=reset_every,
        measure=lambda logits, targets, places: kept.append(logits[-1]),
    )
    return kept[-1]
