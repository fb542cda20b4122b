"""The lens: every token's bits with the carried state, without it, and with another's.

The text is read once, and the state in front of each window is kept; the windows are then read again in
batches, each as if it were a document's first, and each with the state of another place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.document import Document
from ..data.encoders import encoder_for
from ..data.tokens import COUNTS, Tokens
from ..state import State
from ..windows import IGNORED
from .diagnose import KeptStates, WindowReader, donors, drawn_windows
from .score import score, stretches_to_score

NATS_A_BIT = float(np.log(2))


@dataclass(frozen=True)
class Lens:
    """One number for every token of a text; NaN where it was not predicted.

    In a document's first window, which has no past, all three are the same.
    """

    ids: np.ndarray  # [N]
    document: np.ndarray  # [N]
    window: np.ndarray  # [N] number of the window that predicted it, in its document
    position: np.ndarray  # [N] of the position that predicted it, in that window
    own: np.ndarray  # [N] bits, with the state that was carried there
    without: np.ndarray  # [N] bits, each window read as a document's first
    other: np.ndarray  # [N] bits, with the state of another document or a far part of this one
    other_is: str

    @property
    def saved(self) -> np.ndarray:
        """[N] bits that the carried state saved; below zero: cost."""
        return self.without - self.own


def lens(
    model: Any,
    text: str | Tokens,
    tokenizer: Any = None,
    *,
    rows: int = 16,
    seed: int = 0,
    advance: Callable[[int], Any] | None = None,
) -> Lens:
    """Read a text with a recurrent language model, with its state, without it and with another's.

    tokenizer: for a text in letters: a fast one of transformers, or an encoder of holdover.data.
    advance: is told of windows as they are read, three times each.
    """
    tokens = as_tokens(text, tokenizer) if isinstance(text, str) else text
    settings = model.settings
    if settings.carry == "none":
        raise ValueError(
            "The model carries nothing from window to window, so there is nothing to look at: give one "
            "with a recurrence."
        )
    if model.training:
        raise ValueError(
            "The model is in training mode, where dropout would change every number: call model.eval() "
            "first."
        )
    device = model.device
    told = advance or (lambda count: None)
    stretches = stretches_to_score(tokens, settings, None)
    everything = drawn_windows(
        tokens, stretches, settings.window, settings.overlap, len(tokens), seed
    )
    kept = KeptStates(stretches, everything)
    scores = score(model, tokens, rows=rows, device=device, keep_state=kept, advance=advance)
    reader = WindowReader(model, tokens, stretches, everything, rows, device, told)
    chosen, kind = donors(stretches, everything, seed) if everything else ([], "nothing")
    return Lens(
        ids=np.asarray(tokens.ids),
        document=scores.document,
        window=scores.window,
        position=scores.position,
        own=scores.nll / NATS_A_BIT,
        without=_read_again(reader, scores.nll, lambda number: None) / NATS_A_BIT,
        other=_read_again(reader, scores.nll, lambda number: kept.states[chosen[number]])
        / NATS_A_BIT,
        other_is=kind,
    )


def as_tokens(text: str, tokenizer: Any) -> Tokens:
    """A text as a corpus of one document, kept in memory."""
    if tokenizer is None:
        raise ValueError(
            "A text in letters needs its tokenizer: give lens(model, text, tokenizer)."
        )
    encoder = encoder_for(tokenizer)
    document = Document("text", lambda: iter([text.encode()]))
    ids, _, counts = zip(*encoder.encode_document(document), strict=True)
    joined = np.concatenate(ids).astype(np.int64)
    return Tokens(
        ids=joined,
        bounds=np.array([0, len(joined)]),
        counts={name: np.array([sum(part[name] for part in counts)]) for name in COUNTS},
        encoder=encoder,
        about={"source": "text", "split": "all"},
    )


def _read_again(
    reader: WindowReader, own: np.ndarray, state_of: Callable[[int], State | None]
) -> np.ndarray:
    """[N] -log p with states of one's choice, where there is a past; elsewhere the own."""
    found = own.copy()
    for _, batch, nll in reader.read(state_of):
        for row, place in enumerate(batch.places[0]):
            assert place is not None
            into = slice(place.start + place.keep + 1, place.start + place.length + 1)
            wanted = reader.tokens.targets(into.start, into.stop) != IGNORED
            found[into] = np.where(wanted, nll[row, place.keep : place.length], np.nan)
    return found
