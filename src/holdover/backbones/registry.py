"""One row an architecture: where its layers, attention modules and norms are. Nothing else of it.

Paths start at `model.base_model` (base), at the base (layers) or at a layer (attention, norm).
To add an architecture, add its row to BACKBONES; the contract tests find it there and need one tiny
configuration of it in tests/support/tiny.py. A row may name an adapter class for an attention that
takes no mask or bias as arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .attention import AttentionHook
from .gpt_neo import GPTNeoAttentionHook
from .mpnet import MPNetAttentionHook
from .transformer_xl import TransformerXLAttentionHook, TransformerXLHooks
from .xlnet import XLNetAttentionHook, XLNetHooks


def _max_positions(config: Any) -> int | None:
    return getattr(config, "max_position_embeddings", None)


def _max_positions_after_padding(config: Any) -> int:
    """RoBERTa and MPNet count positions from padding_idx + 1."""
    return config.max_position_embeddings - config.pad_token_id - 1


@dataclass(frozen=True)
class ArchitectureSpec:
    layers: str
    attention: str
    # The module whose forward runs the layers, where it is not the base model itself.
    base: str = ""
    norm: str | None = None
    causal: bool = True
    attention_hook: type[AttentionHook] = AttentionHook
    hooks: type | None = None  # None: the ordinary ones
    layer_returns_tuple: bool = False
    positions: Callable[[Any], int | None] = _max_positions
    # The position whose vector stands for a whole sequence in front of a classifier.
    sequence_vector: str = "last"
    # Uses a norm in front of attention only where the configuration says so.
    norm_if: str | None = None
    # Older inputs of every layer can be attended to (carry="memory").
    takes_memory: bool = False
    # Layers (from 0) that have a state of their own in a model so configured (carry="blocks").
    recurrent_layers: Callable[[Any], tuple[int, ...]] = lambda config: ()


_LLAMA = ArchitectureSpec(layers="layers", attention="self_attn", norm="input_layernorm")
_BERT = ArchitectureSpec(
    layers="encoder.layer", attention="attention.self", causal=False, sequence_vector="first"
)

BACKBONES: dict[str, ArchitectureSpec] = {
    "gpt2": ArchitectureSpec(layers="h", attention="attn", norm="ln_1"),
    "opt": ArchitectureSpec(
        base="decoder",
        layers="layers",
        attention="self_attn",
        norm="self_attn_layer_norm",
        norm_if="do_layer_norm_before",
    ),
    "gpt_neo": ArchitectureSpec(
        layers="h",
        attention="attn.attention",
        norm="ln_1",
        attention_hook=GPTNeoAttentionHook,
        layer_returns_tuple=True,
    ),
    "gpt_neox": ArchitectureSpec(layers="layers", attention="attention", norm="input_layernorm"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma3_text": _LLAMA,
    "bert": _BERT,
    "roberta": ArchitectureSpec(
        layers="encoder.layer",
        attention="attention.self",
        causal=False,
        positions=_max_positions_after_padding,
        sequence_vector="first",
    ),
    "electra": _BERT,
    "distilbert": ArchitectureSpec(
        layers="transformer.layer", attention="attention", causal=False, sequence_vector="first"
    ),
    "mpnet": ArchitectureSpec(
        layers="encoder.layer",
        attention="attention.attn",
        causal=False,
        attention_hook=MPNetAttentionHook,
        layer_returns_tuple=True,
        positions=_max_positions_after_padding,
        sequence_vector="first",
    ),
    "modernbert": ArchitectureSpec(
        layers="layers", attention="attn", norm="attn_norm", causal=False, sequence_vector="first"
    ),
    "xlnet": ArchitectureSpec(
        layers="layer",
        attention="rel_attn",
        causal=False,
        attention_hook=XLNetAttentionHook,
        hooks=XLNetHooks,
        layer_returns_tuple=True,
        positions=lambda config: None,
        takes_memory=True,
    ),
    "holdover_xl": ArchitectureSpec(
        layers="layers",
        attention="attention",
        attention_hook=TransformerXLAttentionHook,
        hooks=TransformerXLHooks,
        positions=lambda config: None,
        takes_memory=True,
        recurrent_layers=lambda config: tuple(layer - 1 for layer in config.recurrent_layers),
    ),
}


def spec_of(model_type: str) -> ArchitectureSpec:
    if model_type not in BACKBONES:
        raise ValueError(
            f"holdover has no row for the architecture {model_type!r}; it knows "
            f"{', '.join(BACKBONES)}. To add one, add a row to BACKBONES in "
            "holdover/backbones/registry.py that says where its layers, attention and norm are "
            "(docs/design.md, Adding an architecture)."
        )
    return BACKBONES[model_type]
