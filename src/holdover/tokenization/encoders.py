"""Encoders: bytes (byte_encoder.py), or a fast Hugging Face tokenizer.

* Documents are encoded in pieces, and the pieces are exactly what encoding the whole would give.
* No special tokens are added: whether documents begin with one is the cache's business.
* The ids of byte-level tokenizers are decoded to exact bytes, also where a character is cut.
* Transformers makes an empty tokenizer out of a folder that has only a model: that is refused here.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .byte_encoder import OWN_FILE, SYMBOLS, ByteEncoder, Piece, overlapping
from .chunked_tokenization import CHUNK, encode_in_windows
from .document import Document
from .text_counter import TextCounter, characters

TOKENIZER_FILES = re.compile(r"tokenizer.*|vocab.*|merges\.txt|.*\.model|.*\.tiktoken")


class HFEncoder:
    """A fast tokenizer of transformers."""

    def __init__(self, tokenizer: Any, name: str, chunk: int = CHUNK) -> None:
        from tokenizers import Tokenizer

        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"The tokenizer {name} is a slow one ({type(tokenizer).__name__}): a fast tokenizer "
                "(tokenizer.json) is needed, it alone says which characters a token stands for."
            )
        self.name = name
        self.tokenizer = tokenizer
        self.bos: int | None = tokenizer.bos_token_id
        self._chunk = chunk
        self._description = tokenizer.backend_tokenizer.to_str()
        # A copy of its own: settings of a caller's tokenizer are not touched, and without the last
        # step the offsets of a token cover its white space too.
        self._backend = Tokenizer.from_str(self._description)
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.post_processor = None
        self.vocabulary = (
            max(self._backend.get_vocab(with_added_tokens=True).values(), default=0) + 1
        )

    def fingerprint(self) -> str:
        return hashlib.sha256(self._description.encode()).hexdigest()

    def encode_document(self, document: Document, errors: str = "strict") -> Iterator[Piece]:
        counter = TextCounter()

        def texts() -> Iterator[str]:
            for text, size in characters(document.name, document.read(), errors):
                counter.add_characters(text, size)
                yield text

        for ids, starts, stops in encode_in_windows(texts(), self._encode, self._chunk):
            scored = None
            if document.scored is not None:
                scored = overlapping(starts, stops, document.scored)
            yield ids, scored, counter.take()

    def decode(self, ids: Sequence[int]) -> bytes:
        if self._byte_level:
            return b"".join(self._texts[number] for number in ids)
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        ).encode()

    def token_texts(self) -> list[bytes]:
        """What every id stands for inside a text: exact bytes, also of parts of characters."""
        return self._texts

    def save(self, folder: str | Path) -> None:
        self.tokenizer.save_pretrained(str(folder))

    def starts_word(self) -> np.ndarray:
        return np.array([_text(token)[:1].isspace() for token in self._texts])

    def ends_word(self) -> np.ndarray:
        return np.array([_text(token)[-1:].isspace() for token in self._texts])

    def blank(self) -> np.ndarray:
        return np.array([_text(token).isspace() for token in self._texts])

    def _encode(self, texts: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        found = self._backend.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in found]

    @cached_property
    def _decoders(self) -> dict[str, dict[str, Any]]:
        """The steps of decoding by their type."""
        decoder: dict[str, Any] = json.loads(self._description)["decoder"] or {"type": "none"}
        steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
        return {step["type"]: step for step in steps}

    @property
    def _byte_level(self) -> bool:
        return "ByteLevel" in self._decoders

    @cached_property
    def _texts(self) -> list[bytes]:
        """What every id stands for inside a text."""
        texts = [b""] * self.vocabulary
        for token, number in self._backend.get_vocab(with_added_tokens=False).items():
            texts[number] = self._token_text(token)
        for number, added in self._backend.get_added_tokens_decoder().items():
            texts[number] = added.content.encode()
        return texts

    def _token_text(self, token: str) -> bytes:
        if self._byte_level:
            return b"".join(BYTE_OF.get(character) or character.encode() for character in token)
        if "WordPiece" in self._decoders:
            prefix = self._decoders["WordPiece"]["prefix"]
            return (
                token.removeprefix(prefix).encode()
                if token.startswith(prefix)
                else (b" " + token.encode())
            )
        fallback = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
        if fallback and "ByteFallback" in self._decoders:
            return bytes.fromhex(fallback[1])
        return token.replace("▁", " ").encode()


def open_encoder(name_or_dir: str | Path, gguf_file: str | None = None) -> ByteEncoder | HFEncoder:
    """`bytes` or another name in SYMBOLS, a folder with a tokenizer (or a GGUF file with one), or a
    name on the hub."""
    name, folder = str(name_or_dir), Path(name_or_dir)
    if name in SYMBOLS:
        return ByteEncoder(name)
    if folder.is_dir():
        if (folder / OWN_FILE).is_file():
            return _open_own(folder / OWN_FILE)
        names = [path.name for path in folder.iterdir()]
        if gguf_file is None and not any(map(TOKENIZER_FILES.fullmatch, names)):
            raise ValueError(
                f"The folder {name} has no tokenizer: say which one to use with --tokenizer, for "
                "example --tokenizer bytes."
            )
    elif folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ValueError(
            f"There is no folder {name} with a tokenizer: give a folder, a name on the hub, or the "
            "word bytes."
        )
    return HFEncoder(_load(name, gguf_file), folder.resolve().name if folder.is_dir() else name)


def encoder_for(tokenizer: Any) -> Any:
    """A fast tokenizer of transformers as an encoder, or the encoder of a folder, a name on the hub or
    the word bytes; encoders are what they are."""
    if isinstance(tokenizer, str | Path):
        return open_encoder(tokenizer)
    if hasattr(tokenizer, "encode_document"):
        return tokenizer
    name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    return HFEncoder(tokenizer, Path(name).name)


def encoder_of(
    model: str, tokenizer: str | None = None, gguf_file: str | None = None
) -> ByteEncoder | HFEncoder:
    """The tokenizer that was asked for, else the model's own."""
    return open_encoder(tokenizer) if tokenizer else open_encoder(model, gguf_file)


def _open_own(path: Path) -> ByteEncoder:
    try:
        kind = json.loads(path.read_bytes())["kind"]
    except (ValueError, TypeError, KeyError):
        kind = None
    if kind not in SYMBOLS:
        raise ValueError(
            f"{path} does not name a kind of tokenizer that is known here: "
            f'{{"kind": "bytes"}} was expected, or one of {", ".join(SYMBOLS)}.'
        )
    return ByteEncoder(kind)


def _load(name: str, gguf_file: str | None) -> Any:
    import transformers

    options = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        return transformers.AutoTokenizer.from_pretrained(name, **options)
    # Missing packages, damaged files, no network: many kinds, all of them mean "not this one".
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(" .:")
        raise ValueError(
            f"The tokenizer {name} could not be loaded ({reason}): give a folder or a name on the "
            "hub that has one, or --tokenizer bytes."
        ) from error


def _text(token: bytes) -> str:
    return token.decode("utf-8", errors="replace")


def _byte_of() -> dict[str, bytes]:
    """The characters that byte-level tokenizers write for bytes: printable ones are themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [value for value in range(256) if value not in printable]
    written = {chr(value): value for value in printable}
    written |= {chr(256 + number): value for number, value in enumerate(others)}
    return {character: bytes([value]) for character, value in written.items()}


BYTE_OF = _byte_of()
