"""Models that write, in double precision, and writing done the slow way."""

import torch

from tiny import attach, build

WINDOW = 9
OPTIONS = {
    "pooled": {},
    "pooled-overlap": {"overlap": 3},
    "tokens": {"carry": "tokens", "slots": 2},
    "tokens-overlap": {"carry": "tokens", "slots": 2, "overlap": 3},
    "none": {"carry": "none"},
    "none-overlap": {"carry": "none", "overlap": 3},
}
# Inside the first window, exactly one, one and a bit, several.
PROMPTS = [1, WINDOW, WINDOW + 1, 4 * WINDOW - 2]


def model_of(name="gpt2", positions=None, **options):
    """In double precision, where a window read whole and one read by tokens give the same logits."""
    limits = {} if positions is None else {"max_position_embeddings": positions}
    return attach(build(name, **limits).double(), **options).double()


def just_fits(options):
    """Positions of a model that can hold one window and no token more."""
    return WINDOW + 2 * options.get("slots", 0)


@torch.no_grad()
def re_fed(model, ids, count, state=None, written=None):
    """Greedy decoding that reads the whole text again for every token.

    No output sees a later token (test_contract). So one pass over `written` suffices if each of its
    tokens is the likeliest after those before it.
    """
    prompt = ids.shape[1]
    if written is not None and len(written) == count:
        read = torch.cat([ids, torch.tensor([written[:-1]], dtype=ids.dtype)], 1)
        likeliest = model(read, state=state).logits[0, prompt - 1 :].argmax(-1)
        if likeliest.tolist() == written:
            return written
    for _ in range(count):
        following = model(ids, state=state).logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, following], 1)
    return ids[0, prompt:].tolist()


class Forwards:
    """How many tokens went through the embedding."""

    def __init__(self, model):
        self.tokens = 0
        model.get_input_embeddings().register_forward_hook(self._count)

    def _count(self, module, args, output):
        self.tokens += args[0].numel()
