"""The lens: every token's bits with the carried state, without it, and with another's.

The text is read once, and the state in front of each window is kept; the windows are then read again in
batches, each as if it were a document's first, and each with the state of another place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..recurrent.checks import check_vocabulary
from ..recurrent.model import RecurrentModel
from ..state import State
from ..text.tokens import COUNTS, Tokens
from ..tokenization.document import Document
from ..tokenization.encoders import encoder_for
from ..windows import IGNORED
from .diagnose import KeptStates, WindowReader, donors, drawn_windows
from .scoring import score, segments_to_score

NATS_A_BIT = float(np.log(2))


@dataclass(frozen=True)
class Lens:
    """One number for every token of a text; NaN where it was not predicted.

    In a document's first window, which has no past, all three are the same. A text in which only one
    window has a past has no other state to try: `other` is NaN throughout.
    """

    ids: np.ndarray  # [N]
    document: np.ndarray  # [N]
    window: np.ndarray  # [N] number of the window that predicted it, in its document
    position: np.ndarray  # [N] of the position that predicted it, in that window
    own: np.ndarray  # [N] bits, with the state that was carried there
    without: np.ndarray  # [N] bits, each window read as a document's first
    other: np.ndarray  # [N] bits, with the state of another document or a far part of this one
    other_is: str | None  # which of the two; None: there is no other state, and no number
    state_bytes: int  # size of the carried state; 0: no window has a past

    @property
    def saved(self) -> np.ndarray:
        """[N] bits that the carried state saved; below zero: cost."""
        return self.without - self.own


def lens(
    model: Any,
    text: str | Path | Tokens,
    tokenizer: Any = None,
    *,
    rows: int = 16,
    seed: int = 0,
    advance: Callable[[int], Any] | None = None,
) -> Lens:
    """Read a text with a recurrent language model, with its state, without it and with another's.

    text: letters, a file of them, or tokens of holdover.text. tokenizer: for letters: a fast one of
    transformers, a folder that has one, or the word bytes.
    advance: called with the number of windows just read; every window is read three times.
    """
    check_can_be_seen(model, rows, seed)
    if isinstance(text, Path):
        text = text.read_text(encoding="utf-8")
    if isinstance(text, str) and not text:
        raise ValueError("There is nothing to look at: the text is empty.")
    tokens = as_tokens(text, tokenizer, model) if isinstance(text, str) else text
    settings, device = model.settings, model.device
    told = advance or (lambda count: None)
    stretches = segments_to_score(tokens, settings, None)
    everything = drawn_windows(
        tokens, stretches, settings.window, settings.overlap, len(tokens), seed
    )
    kept = KeptStates(stretches, everything)
    scores = score(model, tokens, rows=rows, device=device, keep_state=kept, advance=advance)
    reader = WindowReader(model, tokens, stretches, everything, rows, device, told)
    other, kind = np.full(len(tokens), np.nan), None
    if len(everything) > 1:
        chosen, kind = donors(stretches, everything, seed)
        other = _read_again(reader, scores.nll, lambda number: kept.states[chosen[number]])
    return Lens(
        ids=np.asarray(tokens.ids),
        document=scores.document,
        window=scores.window,
        position=scores.position,
        own=scores.nll / NATS_A_BIT,
        without=_read_again(reader, scores.nll, lambda number: None) / NATS_A_BIT,
        other=other / NATS_A_BIT,
        other_is=kind,
        state_bytes=next((state.nbytes for state in kept.states.values()), 0),
    )


def check_can_be_seen(model: Any, rows: int, seed: int) -> None:
    if not isinstance(model, RecurrentModel) or model.settings.carry == "none":
        raise ValueError(
            "The model carries nothing from window to window, so there is nothing to look at: give one "
            "with a recurrence (holdover.add_recurrence, or one that holdover trained)."
        )
    if model.task != "causal-lm":
        raise ValueError(
            f"The lens looks at models that predict the next token, and {type(model.backbone).__name__} "
            "does not: give a causal language model."
        )
    if model.training or not model.enabled:
        raise ValueError(
            "The model is in training mode, or its recurrence is disabled, and every number would be "
            "another: call model.eval() first, and leave disable_recurrence()."
        )
    if rows < 1 or seed < 0:
        raise ValueError(f"rows={rows} must be at least 1, and seed={seed} at least 0.")


def as_tokens(text: str, tokenizer: Any, model: RecurrentModel) -> Tokens:
    """A text as a corpus of one document, kept in memory."""
    if tokenizer is None:
        raise ValueError(
            "A text in letters needs its tokenizer: give lens(model, text, tokenizer)."
        )
    encoder = encoder_for(tokenizer)
    check_vocabulary(model, encoder)
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The text holds half a character at {error.start} (a lone surrogate): give whole ones."
        ) from error
    document = Document("text", lambda: iter([content]))
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
