"""Encoders: pieces give the ids of the whole, and what a text counts."""

import numpy as np
import pytest
import transformers
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from fast_tokenizers import byte_level, metaspace, ragged_text
from holdover.tokenization import encoders as encoders_module
from holdover.tokenization.document import Document
from holdover.tokenization.encoders import ByteEncoder, HFEncoder, open_encoder


def document(text, scored=None, step=37):
    content = text if isinstance(text, bytes) else text.encode()
    parts = [content[at : at + step] for at in range(0, len(content), step)]
    return Document("a text", lambda: iter(parts), scored)


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=["[UNK]", "[CLS]"], show_progress=False
    )
    tokenizer.train_from_iterator([ragged_text(9)], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


TOKENIZERS = {
    "byte-level": byte_level,
    "byte-level, offsets kept": lambda: byte_level(trim=False),
    "metaspace": metaspace,
    "metaspace without words": lambda: metaspace(split=False),
    "unigram": lambda: metaspace(kind="unigram"),
    "word pieces": word_piece,
}


@pytest.fixture(scope="module")
def tokenizers():
    return {name: make() for name, make in TOKENIZERS.items()}


def encoded(encoder, text, scored=None, errors="strict", **options):
    ids, flags, counts = [], [], {}
    for piece, flag, counted in encoder.encode_document(document(text, scored, **options), errors):
        ids += piece.tolist()
        flags += [] if flag is None else flag.tolist()
        for name, number in counted.items():
            counts[name] = counts.get(name, 0) + number
    return ids, flags, counts


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("chunk", [16, 50, 333, 5000])
def test_pieces_are_the_whole(name, chunk, tokenizers):
    tokenizer = tokenizers[name]
    encoder = HFEncoder(tokenizer, name, chunk)
    for seed in range(3):
        text = ragged_text(seed)
        whole = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        assert encoded(encoder, text)[0] == whole


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    "text", ["a" * 3000, " " * 3000 + "x", "\n" * 500, "1234567890" * 300, "x", "é" * 700, " \n "]
)
def test_long_runs_melt_windows_and_stay_right(name, text, tokenizers):
    tokenizer = tokenizers[name]
    whole = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    # Word pieces call words of more than a hundred letters unknown: windows must be able to see them.
    for chunk in (201, 500) if name == "word pieces" else (32, 201):
        assert encoded(HFEncoder(tokenizer, name, chunk), text)[0] == whole


def test_many_windows_come_in_many_pieces(tokenizers):
    encoder = HFEncoder(tokenizers["byte-level"], "b", chunk=500)
    text = ragged_text(4, 3000)
    sizes = [len(ids) for ids, *_ in encoder.encode_document(document(text), "strict")]
    assert len(sizes) > len(text) / 500 / 2


@pytest.mark.parametrize("make", [ByteEncoder, lambda: HFEncoder(byte_level(), "b", 300)])
def test_counts_are_those_of_the_whole_text(make):
    text = ragged_text(2, 400)
    for step in (1, 7, 10_000):
        assert encoded(make(), text, step=step)[2] == {
            "bytes": len(text.encode()),
            "characters": len(text),
            "words": len(text.split()),
            "lines": text.count("\n"),
        }


def test_bytes_are_never_refused():
    ids, _, counts = encoded(ByteEncoder(), b"ab\xff c\xe2\x82", step=2)
    assert bytes(ids) == b"ab\xff c\xe2\x82"
    assert counts == {"bytes": 7, "characters": 6, "words": 2, "lines": 0}


@pytest.mark.parametrize(("content", "offset"), [(b"ab\xffcd", 2), (b"abc\xe2\x82", 3)])
@pytest.mark.parametrize("step", [1, 2, 100])
def test_a_wrong_byte_is_located(content, offset, step, tokenizers):
    encoder = HFEncoder(tokenizers["byte-level"], "b")
    with pytest.raises(ValueError, match=f"a text is not valid UTF-8: byte {offset} is 0x") as said:
        encoded(encoder, content, step=step)
    assert "--errors replace" in str(said.value) and str(said.value).endswith(".")
    ids, _, counts = encoded(encoder, content, errors="replace", step=step)
    assert "\ufffd" in encoder.decode(ids).decode()
    assert counts["bytes"] == len(content)


@pytest.mark.parametrize("name", [*TOKENIZERS, "bytes"])
def test_scored_ranges_become_tokens(name, tokenizers):
    text = "Où est le chat? Le chat est là-bas.\n" * 20
    ranges = tuple((at + 3, at + 6) for at in range(0, len(text), 36))
    encoder = ByteEncoder() if name == "bytes" else HFEncoder(tokenizers[name], name, 40)
    ids, flags, _ = encoded(encoder, text, ranges)
    assert len(flags) == len(ids) and any(flags) and not all(flags)
    marked = encoder.decode([token for token, flag in zip(ids, flags, strict=True) if flag])
    if name in {"bytes", "byte-level"}:
        assert marked.decode().replace(" ", "") == "est" * 20
    assert encoded(encoder, text, ())[1] == [False] * len(ids)
    assert encoded(encoder, text)[1] == []


def test_byte_level_ids_decode_to_the_exact_bytes(tokenizers):
    encoder = HFEncoder(tokenizers["byte-level"], "b")
    # A prefix is put before what follows a special token, too.
    text = " " + ragged_text(5, 300).replace("<eos>", "")
    ids = encoded(encoder, text)[0]
    assert encoder.decode(ids) == text.encode()
    # A cut inside of a character keeps its first bytes.
    assert b"".join(encoder.decode([token]) for token in ids) == text.encode()


def test_words_begin_with_white_space(tokenizers):
    for name in ("byte-level", "metaspace"):
        tokenizer = tokenizers[name]
        encoder = HFEncoder(tokenizer, name)
        starts, ends = encoder.starts_word(), encoder.ends_word()
        assert starts.shape == ends.shape == (encoder.vocabulary,)
        number = tokenizer.convert_tokens_to_ids("Ġthe" if name == "byte-level" else "▁the")
        assert starts[number] and not ends[number]
    newline = tokenizers["byte-level"].convert_tokens_to_ids("Ċ")
    encoder = HFEncoder(tokenizers["byte-level"], "b")
    assert encoder.starts_word()[newline] and encoder.ends_word()[newline]
    assert np.flatnonzero(ByteEncoder().starts_word()).tolist() == [9, 10, 11, 12, 13, 32]


def test_word_pieces_that_continue_begin_no_word(tokenizers):
    encoder = HFEncoder(tokenizers["word pieces"], "w")
    starts = encoder.starts_word()
    vocabulary = tokenizers["word pieces"].get_vocab()
    assert not any(starts[n] for token, n in vocabulary.items() if token.startswith("##"))
    assert starts[vocabulary["the"]]


def test_truncation_that_was_saved_is_not_obeyed():
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.enable_truncation(5)
    assert len(encoded(HFEncoder(tokenizer, "b"), "the cat sat on a mat " * 9)[0]) > 20


def test_saved_and_opened_again(tmp_path, tokenizers):
    ByteEncoder().save(tmp_path / "plain")
    assert isinstance(open_encoder(tmp_path / "plain"), ByteEncoder)
    first = HFEncoder(tokenizers["metaspace"], "m")
    first.save(tmp_path / "mine")
    again = open_encoder(tmp_path / "mine")
    assert isinstance(again, HFEncoder)
    assert (again.name, again.bos) == ("mine", first.bos)
    assert again.bos is not None
    text = ragged_text(3, 200)
    assert encoded(again, text) == encoded(first, text)
    assert again.vocabulary == first.vocabulary


def test_fingerprints_differ(tokenizers):
    prints = {HFEncoder(each, name).fingerprint() for name, each in tokenizers.items()}
    assert len({*prints, ByteEncoder().fingerprint()}) == len(TOKENIZERS) + 1


def refusal(name):
    with pytest.raises(ValueError, match=r"\.\Z") as said:
        open_encoder(name)
    sentence = str(said.value)
    assert "\n" not in sentence
    return sentence


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    transformers.GPT2Config(n_layer=1).save_pretrained(tmp_path)
    assert "--tokenizer bytes" in refusal(tmp_path)


def test_what_cannot_be_opened(tmp_path, monkeypatch):
    assert "no folder" in refusal(tmp_path / "absent")
    (tmp_path / "tokenizer.json").write_text("{")
    assert "could not be loaded" in refusal(tmp_path)
    (tmp_path / encoders_module.OWN_FILE).write_text('["bytes"]')
    assert "bytes" in refusal(tmp_path)

    def offline(name, **options):
        raise OSError("no network here\nand more")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", offline)
    assert "nobody/nothing could not be loaded (no network here)" in refusal("nobody/nothing")


def test_a_slow_tokenizer_is_refused(monkeypatch):
    class Slow:
        is_fast = False

    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda name, **options: Slow()
    )
    assert "a slow one (Slow)" in refusal("some/slow")


@pytest.mark.parametrize(("name", "size"), [("enwik8", 205), ("enwik8-204", 204), ("text8", 27)])
def test_symbols_of_a_corpus(name, size, tmp_path):
    encoder = open_encoder(name)
    assert encoder.vocabulary == size == len(encoder.token_texts())
    text = encoder.decode(range(size))
    assert len(set(text)) == size and (b"\n" in text) == (name == "enwik8")
    ids = np.concatenate([ids for ids, _, _ in encoder.encode_document(document(text))])
    assert ids.tolist() == list(range(size))
    assert encoder.fingerprint() != ByteEncoder().fingerprint()
    encoder.save(tmp_path)
    again = open_encoder(tmp_path)
    assert (again.name, again.fingerprint()) == (name, encoder.fingerprint())


def test_a_byte_that_is_no_symbol_is_refused():
    encoder = open_encoder("text8")
    with pytest.raises(ValueError, match=r"a text has the byte 65 \(b'A'\).* 27 symbols"):
        list(encoder.encode_document(document("in An")))
