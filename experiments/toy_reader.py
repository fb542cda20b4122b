"""A reader for the smallest scale: a tiny BERT with a word tokenizer, and questions for it."""

import json
from pathlib import Path
from random import Random
from typing import Any

SPECIAL = ("[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]")
WORDS = ("what", "is", "it", "sweet", "hard", "apple", "stone", "facts", "yes", "no")
FILLERS = tuple(f"w{number}" for number in range(10))
LONG = 12


def make(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Write an encoder and questions; returns the options that open them."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "questions.json"
    data.write_text(json.dumps([record(number, Random(seed + number)) for number in range(count)]))
    encoder = folder / "encoder"
    save_encoder(encoder)
    return {"model": str(encoder), "data": str(data)}


def record(number: int, draw: Random) -> dict[str, Any]:
    """The beginning says sweet or hard; the matching thing stands windows later."""
    taste, answer = draw.choice((("sweet", "apple"), ("hard", "stone")))
    first = ["it", "is", taste, *draw.choices(FILLERS, k=LONG)]
    second = [*draw.choices(FILLERS, k=LONG), *draw.sample(["apple", "stone"], 2)]
    return {
        "_id": str(number),
        "question": "what is it",
        "answer": answer,
        "context": [["facts", [" ".join(first), " ".join(second)]]],
    }


def save_encoder(folder: Path) -> None:
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {word: number for number, word in enumerate((*SPECIAL, *WORDS, *FILLERS))}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(
        ("[SEP]", words["[SEP]"]), ("[CLS]", words["[CLS]"])
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    torch.manual_seed(0)
    transformers.BertModel(
        transformers.BertConfig(
            vocab_size=len(words),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=64,
        )
    ).save_pretrained(folder)
