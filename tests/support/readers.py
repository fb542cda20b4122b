"""Small readers: a tokenizer of whole words, a tiny BERT, and questions that need two windows."""

import json
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from holdover.cli import entry as cli
from holdover.questions.pairs import PairTokenizer
from holdover.questions.question import Question
from holdover.tokenization.encoders import HFEncoder
from runs import flags_of

SPECIAL = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]"]
FILLERS = [f"w{number}" for number in range(20)]
WORDS = ["what", "is", "it", "sweet", "hard", "apple", "stone", "facts", "yes", "no", ".", ",", "?"]
VOCABULARY = [*SPECIAL, *WORDS, *FILLERS]
# Of a window: [CLS] what is it [SEP] ... [SEP].
AROUND = 6
ROOM = 8


def word_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Words and punctuation marks as ids, pairs as BERT has them."""
    ids = {word: number for number, word in enumerate(VOCABULARY)}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3))
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **names,
    )


def pair_tokenizer() -> PairTokenizer:
    return PairTokenizer(HFEncoder(word_tokenizer(), "words"))


def save_encoder(folder: Path, dropout: float = 0.0, seed: int = 0) -> Path:
    """A tiny random BERT with its tokenizer, as a pretrained one lies in a folder."""
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        # Random weights of the usual size are slow to notice a state.
        initializer_range=0.3,
    )
    torch.manual_seed(seed)
    transformers.BertModel(config).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def question(context: str, answer: str | None = None, asked: str = "what is it") -> Question:
    return Question("q", asked, context, answer)


def sweet_or_hard(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """The first window says sweet or hard, the second names an apple and a stone in any order."""
    draw = Random(seed)
    records = []
    for number in range(count):
        taste = draw.choice(["sweet", "hard"])
        things = draw.sample(["apple", "stone"], 2)
        places = draw.sample(range(ROOM), 2)
        second = draw.choices(FILLERS, k=ROOM)
        for place, thing in zip(places, things, strict=True):
            second[place] = thing
        # Said more than once: in a mean over few positions of a random model one word is hard to hear.
        first = ["facts", "it", "is", *[taste] * 3, *draw.choices(FILLERS, k=ROOM - 6)]
        answer = "apple" if taste == "sweet" else "stone"
        records.append(
            {
                "_id": f"id{number}",
                "question": "What is it",
                "answer": answer,
                "type": draw.choice(["bridge", "comparison"]),
                "context": [["facts", [" ".join(first[1:]), " ".join(second)]]],
            }
        )
    return records


def write_questions(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps(records))
    return path


def command(folder: Path, *words: str, resume: bool = False, **settings: Any) -> list[str]:
    """Arguments that train a tiny reader on folder/questions.json into folder/run."""
    if not (folder / "encoder").exists():
        save_encoder(folder / "encoder")
    data = folder / "questions.json"
    if not data.exists():
        write_questions(data, sweet_or_hard(40))
    chosen: dict[str, Any] = {
        "model": folder / "encoder",
        "data": data,
        "window": ROOM + AROUND,
        "rows": 4,
        "lr": 1e-3,
        "added_learning_rate": 1e-3,
        "warm_up": 0,
        "epochs": 1,
        "device": "cpu",
        "output": folder / "run",
        **settings,
    }
    return ["qa", "train", *flags_of(chosen), *words, *(["--resume"] if resume else [])]


def train(folder: Path, *words: str, **settings: Any) -> Path:
    """Run it to its end; returns its folder."""
    assert cli.main(command(folder, *words, **settings)) == 0
    return Path(settings.get("output", folder / "run"))


def evaluate(model: Path, **settings: Any) -> dict[str, Any]:
    """The record of an evaluation, read from its file."""
    output = model.parent / f"{model.name}-eval"
    given = {"model": model, "output": output, "device": "cpu", **settings}
    assert cli.main(["qa", "eval", *flags_of(given)]) == 0
    return json.loads((Path(given["output"]) / "qa_eval.json").read_text())
