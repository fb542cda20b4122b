"""The tokens of a split: of a corpus's own split, or of a part of a text without splits."""

from importlib.resources import files
from typing import Any, Literal

from rich.console import Console

from .options import TextOptions
from .sources import open_source
from .synthetic import open_synthetic
from .token_cache import tokenise
from .tokens import Encoder, Tokens

# The novel in the package.
BUNDLED = {"time-machine": "the_time_machine.txt"}
# From this number of documents on, a held-out end begins at the start of a document.
MANY_DOCUMENTS = 20


def read_text(
    options: TextOptions,
    encoder: Encoder,
    split: Literal["train", "valid", "test", "all"],
    *,
    window: int,
    data: str | None = None,
    whole: bool = False,
    console: Console | None = None,
) -> Tokens:
    """The tokens of a split of `data`, or else of options.data.

    A text without splits is divided into a part for training and a held-out end (valid). With
    whole=True, and for the splits test and all, it is read whole.
    """
    spec = data or options.data
    source: Any = open_synthetic(spec, split, window)
    if source is None:
        if spec in BUNDLED:
            spec = str(files("holdover") / "bundled" / BUNDLED[spec])
        source = open_source(
            spec,
            "train" if split == "all" else split,
            data_dir=options.data_dir,
            text_field=options.text_field,
            new_document=options.new_document,
            errors=options.errors,
        )
    if source.has_splits and split == "all":
        raise ValueError(f"{spec} has its own splits: give --split train, valid or test.")
    tokens = tokenise(
        source,
        encoder,
        cache_dir=options.cache_dir,
        bos=options.bos,
        errors=options.errors,
        console=console,
    )
    if source.has_splits or whole or split in ("all", "test"):
        return tokens
    return held_out(tokens, options.held_out, train=split == "train")


def held_out(tokens: Tokens, share: float, train: bool) -> Tokens:
    """The part for training, or the held-out end."""
    cut = round(len(tokens) * (1 - share))
    if tokens.documents >= MANY_DOCUMENTS:
        cut = min(tokens.bounds[1:-1].tolist(), key=lambda bound: abs(bound - cut))
    part = tokens.part(0, cut) if train else tokens.part(cut, len(tokens))
    which = "all but its end" if train else "its end"
    if len(part) < 2:
        raise ValueError(
            f"The text has {len(tokens)} tokens, and {which} (--held-out {share}) leaves nothing to "
            "predict: give a longer text, or another one with --validation."
        )
    about = {**part.about, "part": f"{which}, {len(part)} of {len(tokens)} tokens"}
    return Tokens(part.ids, part.bounds, part.counts, part.encoder, part.scored, about)
