"""Losses of a text by one forward pass for each target."""

import numpy as np
import torch

from holdover.windows import Window


def spans(length, window, overlap):
    """(first input, one past the last input, first input that is scored) of a document's windows."""
    inputs, start, done = length - 1, 0, 0
    found = []
    while done < inputs:
        stop = min(start + window, inputs)
        found.append((start, stop, done))
        start, done = start + window - overlap, stop
    return found


@torch.no_grad()
def brute_force(model, tokens, window, overlap, reset_every=None, read=None):
    """[N] -log p: every target by a forward of its own; `read` gives a window's state to the next."""
    read = read or (lambda ids, state: model.step(Window(ids), state)[1])
    found = np.full(len(tokens), np.nan)
    for first, last in zip(tokens.bounds[:-1], tokens.bounds[1:], strict=True):
        ids = torch.from_numpy(tokens.ids[first:last].astype(np.int64))[None]
        state = None
        for number, (start, stop, scored) in enumerate(spans(last - first, window, overlap)):
            if reset_every is not None and number % reset_every == 0:
                state = None
            for position in range(scored, stop):
                output, _ = model.step(Window(ids[:, start : position + 1]), state)
                logits = output["logits"][0, -1]
                target = int(ids[0, position + 1])
                if tokens.scored is None or tokens.scored[first + position + 1]:
                    found[first + position + 1] = float(-logits.log_softmax(0)[target])
            state = read(ids[:, start:stop], state)
    return found
