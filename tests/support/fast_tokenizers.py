"""Small trained tokenizers of the usual kinds, and a text that is hard to cut."""

import random

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPACES = [" ", " ", " ", "  ", "\n", "\n\n", " \n ", "\t", "\r\n", "\u00a0", "\u3000", "      "]
LATIN = "the cat sat on a mat and didn't it's 1999 12345678901234567890 x = y(z); Don't <eos>"
OTHERS = (
    "naïve Straße 東京 日本語のテキスト 🙂🙃 👩\u200d👩\u200d👧 e\u0301te\u0301 aaaaaaaaaaaa ▁ ğ"
)
WORDS = f"{LATIN} {OTHERS}".split()


def ragged_text(seed=0, words=1500):
    draw = random.Random(seed)
    return "".join(draw.choice(WORDS) + draw.choice(SPACES) for _ in range(words))


def byte_level(trim=True, corpus=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    tokenizer.train_from_iterator([corpus or ragged_text(9)], trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def metaspace(split=True, kind="bpe"):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>") if kind == "bpe" else models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=split)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always", split=split)
    make = trainers.BpeTrainer if kind == "bpe" else trainers.UnigramTrainer
    options = {} if kind == "bpe" else {"unk_token": "<unk>"}
    special = ["<unk>", "<s>"]
    trainer = make(vocab_size=400, special_tokens=special, show_progress=False, **options)
    tokenizer.train_from_iterator(ragged_text(9).split("\n"), trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>"
    )
