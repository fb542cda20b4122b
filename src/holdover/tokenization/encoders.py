"""Encoders: bytes (byte_encoder.py), or a fast Hugging Face tokenizer.

* Documents are encoded in pieces. Together the pieces equal the encoding of the whole document.
* No special tokens are added here. The token cache adds a beginning-of-text token if asked to.
* Ids of byte-level tokenizers decode to exact bytes, even if a token holds part of a character.
* transformers makes an empty tokenizer for a folder that holds only a model. That is refused here.
* A tokenizer's folder is not trusted: no code of it is executed, and its class must be a tokenizer.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..backbones.safe_loading import RemoteCodeError, find_file, refusing_code
from .byte_encoder import OWN_FILE, SYMBOLS, ByteEncoder, Piece, overlapping
from .chunked_tokenization import CHUNK, encode_in_windows
from .document import Document, TextCounter, characters

TOKENIZER_FILES = re.compile(r"tokenizer.*|vocab.*|merges\.txt|.*\.model|.*\.tiktoken")


class HFEncoder:
    """A fast tokenizer of transformers."""

    def __init__(self, tokenizer: Any, name: str, chunk: int = CHUNK) -> None:
        from tokenizers import Tokenizer

        if not getattr(tokenizer, "is_fast", False):
            raise ValueError(
                f"The tokenizer {name} is a slow one ({type(tokenizer).__name__}): give a fast one "
                "(tokenizer.json), because only those say which characters a token stands for."
            )
        self.name = name
        self.tokenizer = tokenizer
        self.bos: int | None = tokenizer.bos_token_id
        self._chunk = chunk
        self._description = tokenizer.backend_tokenizer.to_str()
        # A copy, so that the caller's tokenizer keeps its settings. Without the post-processor the
        # offsets of a token include its white space.
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
        """[V] the exact bytes of every id inside a text; they may be a part of a character."""
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
        encodings = self._backend.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    @cached_property
    def _decoders(self) -> dict[str, dict[str, Any]]:
        """The decoding steps by type."""
        decoder: dict[str, Any] = json.loads(self._description)["decoder"] or {"type": "none"}
        steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
        return {step["type"]: step for step in steps}

    @property
    def _byte_level(self) -> bool:
        return "ByteLevel" in self._decoders

    @cached_property
    def _texts(self) -> list[bytes]:
        """[V] the bytes of every id inside a text."""
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


def open_encoder(
    name_or_dir: str | Path, gguf_file: str | None = None, *, trust_remote_code: bool = False
) -> ByteEncoder | HFEncoder:
    """The encoder called `bytes` or another name in SYMBOLS, or the tokenizer of a folder, of a GGUF
    file in it, or of a name on the hub."""
    name, folder = str(name_or_dir), Path(name_or_dir)
    if name in SYMBOLS:
        return ByteEncoder(name)
    if folder.is_dir():
        if (folder / OWN_FILE).is_file():
            return _open_own(folder / OWN_FILE)
        names = [path.name for path in folder.iterdir()]
        if gguf_file is None and not any(map(TOKENIZER_FILES.fullmatch, names)):
            raise ValueError(
                f"The folder {name} has no tokenizer: name one with --tokenizer, for example "
                "--tokenizer bytes."
            )
    elif folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ValueError(
            f"There is no folder {name} with a tokenizer: give a folder, a name on the hub, or the "
            "word bytes."
        )
    tokenizer = _load(name, gguf_file, trust_remote_code)
    return HFEncoder(tokenizer, folder.resolve().name if folder.is_dir() else name)


def encoder_for(tokenizer: Any) -> Any:
    """An encoder: as given, made from a fast tokenizer of transformers, or opened by name or folder."""
    if isinstance(tokenizer, str | Path):
        return open_encoder(tokenizer)
    if hasattr(tokenizer, "encode_document"):
        return tokenizer
    name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    return HFEncoder(tokenizer, Path(name).name)


def encoder_of(
    model: str,
    tokenizer: str | None = None,
    gguf_file: str | None = None,
    *,
    trust_remote_code: bool = False,
) -> ByteEncoder | HFEncoder:
    """The tokenizer that was asked for, or else the model's own."""
    if tokenizer:
        return open_encoder(tokenizer, trust_remote_code=trust_remote_code)
    return open_encoder(model, gguf_file, trust_remote_code=trust_remote_code)


def _open_own(path: Path) -> ByteEncoder:
    try:
        kind = json.loads(path.read_bytes())["kind"]
    except (ValueError, TypeError, KeyError):
        kind = None
    if kind not in SYMBOLS:
        raise ValueError(
            f"{path} names no kind of tokenizer that holdover knows: it must be like "
            f'{{"kind": "bytes"}}, with one of {", ".join(SYMBOLS)}.'
        )
    return ByteEncoder(kind)


def _load(name: str, gguf_file: str | None, trust_remote_code: bool) -> Any:
    import transformers

    options: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
    try:
        with refusing_code(f"The tokenizer {name}"):
            _check_class(name)
            return transformers.AutoTokenizer.from_pretrained(
                name, trust_remote_code=trust_remote_code, **options
            )
    except RemoteCodeError:
        raise
    # Missing packages, damaged files, no network: each raises its own error.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(" .:")
        raise ValueError(
            f"The tokenizer {name} could not be loaded ({reason}): give a folder or a name on the "
            "hub that has one, or --tokenizer bytes."
        ) from error


def _check_class(name: str) -> None:
    """Refuse a folder whose tokenizer_class is another class of transformers: AutoTokenizer would call
    that class, without passing on that remote code is off."""
    from transformers import PreTrainedTokenizerBase
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    for file in ("tokenizer_config.json", "config.json"):
        path = find_file(name, file)
        content = {} if path is None else json.loads(path.read_text())
        saved = str(content.get("tokenizer_class") or "") if isinstance(content, dict) else ""
        for class_name in {saved, f"{saved}Fast", saved.removesuffix("Fast")} if saved else ():
            known: Any = tokenizer_class_from_name(class_name)
            # Classes whose package is missing say so themselves.
            if known is None or getattr(known, "_backends", None):
                continue
            if not (isinstance(known, type) and issubclass(known, PreTrainedTokenizerBase)):
                raise ValueError(
                    f"{file} names {saved} as its tokenizer_class, which is no tokenizer"
                )


def _text(token: bytes) -> str:
    return token.decode("utf-8", errors="replace")


def _byte_of() -> dict[str, bytes]:
    """The byte of each character that byte-level tokenizers write; printable bytes stay themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [value for value in range(256) if value not in printable]
    written = {chr(value): value for value in printable}
    written |= {chr(256 + number): value for number, value in enumerate(others)}
    return {character: bytes([value]) for character, value in written.items()}


BYTE_OF = _byte_of()
