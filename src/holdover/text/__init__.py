"""Corpora, tokenized once and cached, and rows of windows that walk through documents."""

from ..lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        ".corpora": "CORPORA",
        "..tokenization.document": "Document",
        ".tokens": "Tokens",
        "..tokenization.encoders": "open_encoder",
        ".sources": "open_source",
        ".token_cache": "tokenise",
    },
)
