"""Small models and texts in a folder, and an evaluation of them."""

import io

import numpy as np
import pytest
import transformers
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from holdover.language.eval_options import EvalOptions
from holdover.language.evaluation import evaluate
from holdover.runs.models import quietly
from holdover.tokenization.encoders import ByteEncoder, HFEncoder
from tiny import attach, build

WINDOW = 12
SHAPE = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
WORDS = ["time", "and", "tide", "wait", "for", "no", "man", "but", "was", "late", "again", "year"]


def prose(words=240, seed=0):
    drawn = np.random.default_rng(seed).choice(WORDS, words).tolist()
    lines = [" ".join(drawn[at : at + 11]) for at in range(0, words, 11)]
    return "\n".join(f"# {n // 3}\n{line}" if n % 3 == 0 else line for n, line in enumerate(lines))


def saved(folder, encoder=None, stock=None, **settings):
    """A small model with its tokenizer in a folder."""
    encoder = encoder or ByteEncoder()
    stock = stock or build("gpt2", vocab_size=encoder.vocabulary, **SHAPE)
    if settings.get("carry") != "stock":
        stock = attach(stock, **{"window": WINDOW, **settings})
    with quietly():
        stock.save_pretrained(folder)
    encoder.save(folder)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with models and texts."""
    folder = tmp_path_factory.mktemp("evaluate")
    saved(folder / "pooled")
    saved(folder / "stock", carry="stock")
    (folder / "text.txt").write_text(prose())
    return folder


def evaluated(place, output, console=None, model="pooled", data="text.txt", **options):
    chosen = {"rows": 4, "draws": 200, "plots": False, "device": "cpu", **options}
    return evaluate(
        EvalOptions(
            model=str(place / model),
            data=str(place / data),
            cache_dir=place / "cache",
            output=output,
            **chosen,
        ),
        console or Console(file=io.StringIO(), width=80),
    )


def subwords():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    tokenizer.train_from_iterator([prose(seed=7)], trainer)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    return HFEncoder(wrapped, "subwords")
