"""Tiny random models: one configuration for each row of BACKBONES, small enough for a loop of tests."""

from typing import Any

import torch
import transformers

import holdover
from holdover.backbones.heads import class_named, head_classes
from holdover.backbones.registry import BACKBONES

VOCABULARY = 61
WIDTH = 32
LAYERS = 3
POSITIONS = 48
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

_HF = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": POSITIONS,
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 8}

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_positions": POSITIONS},
    "opt": {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "ffn_dim": 40,
        "max_position_embeddings": POSITIONS,
        "word_embed_proj_dim": 24,
    },
    "gpt_neo": {
        "hidden_size": WIDTH,
        "num_layers": LAYERS,
        "num_heads": 4,
        "attention_types": [[["global", "local", "global"], 1]],
        "window_size": 4,
        "max_position_embeddings": POSITIONS,
    },
    "gpt_neox": {**_HF},
    "llama": {**_HF, **_GROUPED},
    "mistral": {**_HF, **_GROUPED, "sliding_window": 5},
    "qwen2": {**_HF, "num_key_value_heads": 2},
    "qwen3": {**_HF, **_GROUPED},
    "gemma3_text": {
        **_HF,
        **_GROUPED,
        "sliding_window": 5,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    "bert": {**_HF},
    "roberta": {**_HF, "max_position_embeddings": POSITIONS + 1},
    "electra": {**_HF, "embedding_size": 24},
    "distilbert": {
        "dim": WIDTH,
        "n_layers": LAYERS,
        "n_heads": 4,
        "hidden_dim": 40,
        "max_position_embeddings": POSITIONS,
    },
    "mpnet": {**_HF, "max_position_embeddings": POSITIONS + 1},
    "modernbert": {
        **_HF,
        "global_attn_every_n_layers": 2,
        "local_attention": 6,
        "cls_token_id": 3,
        "sep_token_id": 4,
    },
    "xlnet": {"d_model": WIDTH, "n_layer": LAYERS, "n_head": 4, "d_inner": 40},
    "holdover_xl": {
        "d_model": WIDTH,
        "n_layer": LAYERS,
        "n_head": 4,
        "d_head": 6,
        "d_inner": 40,
    },
}

# A model with recurrent layers is a configuration of its row, and refuses what the row's others take.
BLOCKS = "block_recurrent"
CONFIGS[BLOCKS] = {
    **CONFIGS["holdover_xl"],
    "recurrent_layers": [2],
    "state_vectors": 5,
}
ROWS = {**BACKBONES, BLOCKS: BACKBONES["holdover_xl"]}

DECODERS = [name for name, row in BACKBONES.items() if row.causal]
# Backbones whose attention goes through transformers' attention interface.
RSA_DECODERS = ["gpt2", "opt", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma3_text"]
RSA_ENCODERS = ["bert", "roberta", "electra", "distilbert", "modernbert"]
# The head whose outputs a contract test compares: the language model, which every row has.
LANGUAGE_MODEL = {
    name: "causal-lm" if row.causal or name == "xlnet" else "masked-lm"
    for name, row in ROWS.items()
}


def build(name: str, task: str | None = None, seed: int = 0, **changes: Any) -> Any:
    """A random model of an architecture with the head of a task (None: its language model)."""
    row, model_type = ROWS[name], "holdover_xl" if name == BLOCKS else name
    values = {"vocab_size": VOCABULARY, **SPECIAL, **CONFIGS[name], **changes}
    config = transformers.AutoConfig.for_model(model_type, **values)
    cls = class_named(head_classes(model_type, row)[task or LANGUAGE_MODEL[name]])
    torch.manual_seed(seed)
    model = cls(config).eval()
    for parameter in model.parameters():
        # Stock initialisation is so small that a wrong mask would hide in rounding.
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def attach(model: Any, seed: int = 1, **settings: Any) -> holdover.RecurrentModel:
    torch.manual_seed(seed)
    chosen = {"window": 9, **settings}
    if settings.get("carry", "pooled") in ("pooled", "tokens"):
        chosen.setdefault("map_hidden", (12,))
    attached = holdover.add_recurrence(model, holdover.RecurrenceConfig(**chosen)).eval()
    for parameter in attached.recurrence.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return attached


def tokens(rows: int, columns: int, seed: int = 2) -> torch.Tensor:
    """Random ids that are no special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, VOCABULARY, (rows, columns), generator=generator)


def outputs_of(model: holdover.RecurrentModel, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """[B, N, V] logits of a language model."""
    with torch.no_grad():
        return model(ids, **arguments).logits
