"""The lens as a page: a text coloured by what the carried state saved or cost."""

from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..evaluation.token_lens import Lens
from ..pages import sections
from ..text.tokens import Encoder
from .heat import Heat
from .page import write_parts
from .wording import count, escaped, signed

Against = Literal["without", "other"]
AGAINST = {
    "without": "the same window read as a document's first",
    "other": "the same window read with another state: of {other}",
}


def heat_of(seen: Lens, encoder: Encoder, against: Against = "without") -> Heat:
    """Windows are numbered from 1, through all documents."""
    known = encoder.token_texts()
    texts = [known[number] for number in seen.ids.tolist()]
    # A document's first token is predicted by no window: it goes with the one that reads it.
    place = np.stack([seen.document, seen.window])
    begins = np.any(np.diff(place, axis=1) != 0, axis=0)
    numbers = 1 + np.concatenate([[0], np.cumsum(begins)])
    saved = (seen.without if against == "without" else seen.other) - seen.own
    return Heat(texts=texts, saved=saved, bits=seen.own, window=numbers)


def summary(seen: Lens) -> dict[str, Any]:
    """The lens in a few numbers, in bits a predicted token."""
    predicted = ~np.isnan(seen.own)
    return {
        "documents": int(seen.document.max()) + 1,
        "tokens": len(seen.ids),
        "predicted": int(predicted.sum()),
        "own": float(seen.own[predicted].mean()),
        "without": float(seen.without[predicted].mean()),
        "other": None if seen.other_is is None else float(seen.other[predicted].mean()),
        "other_is": seen.other_is,
        "state_bytes": seen.state_bytes,
    }


def write_lens_page(
    path: Path,
    record: dict[str, Any],
    seen: Lens,
    encoder: Encoder,
    against: Against = "without",
) -> None:
    """record: text, model, window, provenance (holdover.results)."""
    if against == "other" and seen.other_is is None:
        raise ValueError(
            "Only one window of the text has a past, so there is no other state to compare with: give a "
            "longer text, or compare with no state."
        )
    heat = heat_of(seen, encoder, against)
    told = {
        **record,
        "seconds": {},
        "saved_against": AGAINST[against].format(other=seen.other_is),
        "otherwise": "without" if against == "without" else "with another",
    }
    parts = [head(told, summary(seen)), sections.novel(told, heat)]
    write_parts(path, f"{record['text']}: holdover lens", parts, told)


def head(record: dict[str, Any], found: dict[str, Any]) -> str:
    cards = [
        ("bits a token with the state", f"{found['own']:.3f}", "as it was carried"),
        (
            "bits a token without",
            f"{found['without']:.3f}",
            f"{signed(found['without'] - found['own'], 3)} bits",
        ),
    ]
    if found["other_is"] is not None:
        above = f"{signed(found['other'] - found['own'], 3)} bits: {found['other_is']}"
        cards.append(("bits a token with another state", f"{found['other']:.3f}", above))
    items = "".join(
        f"<div><dt>{escaped(label)}</dt><dd><b>{value}</b><small>{escaped(more)}</small></dd></div>"
        for label, value, more in cards
    )
    return f"""<header><p class="eyebrow">holdover lens</p>
<h1><cite>{escaped(record["text"])}</cite>, and what the memory was worth</h1>
<p class="lead">{escaped(record["model"])} read {count(found["tokens"], "token")} in
{count(found["documents"], "document")}, {record["window"]:,} at a time, and carried a state of
{found["state_bytes"]:,} bytes from each window into the next.</p>
<dl class="cards">{items}</dl></header>"""
