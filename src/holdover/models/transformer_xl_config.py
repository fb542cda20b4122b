"""TransformerXLConfig: sizes, dropout, and how far attention reaches."""

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from ..ops.gates import GATES

# How a state vector processes what it has read: a projection with a gate (skip), a feed-forward map with
# a gate (single), or both, one after the other, each with its gate (dual).
STATE_PATHS = ("skip", "single", "dual")


class TransformerXLConfig(PreTrainedConfig):
    """The defaults are the original's 12-layer model for enwik8 and text8.

    The length of the memory is a setting of the state, not of the model:
    RecurrenceConfig(carry="memory", memory_length=...). `clamp_len` and `same_length` involve no weights
    and may be changed in a trained model.
    """

    model_type = "holdover_xl"
    keys_to_ignore_at_inference: ClassVar = ["past_key_values"]
    attribute_map: ClassVar = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "head_dim": "d_head",
        "intermediate_size": "d_inner",
    }

    vocab_size: int = 204
    n_layer: int = 12
    d_model: int = 512
    n_head: int = 8
    d_head: int = 64
    d_inner: int = 2048
    dropout: float = 0.1
    """Dropout of embeddings, of the sinusoids R, and after attention and each feed-forward layer."""
    dropatt: float = 0.0
    """Dropout of attention weights."""
    clamp_len: int | None = None
    """The largest distance that the model distinguishes; longer ones count as this. None: no limit."""
    same_length: bool = False
    """Every query reads as many keys (its own included) as the memory has positions, instead of the
    whole memory and the earlier part of its segment."""
    attention: str = "relative"
    """The kind of attention: a name in ATTENTIONS."""
    rem_counts: tuple[int, ...] | list[int] = (0, 0, 0, 0, 2, 2)
    """With attention="rsa": numbers of heads (regular, cos, sin, and the same three dilated)."""
    rem_dilations: tuple[int, ...] | list[int] = (3, 6, 9, 12)
    """One for each dilated head, in the order cos 1, sin 1, cos 2, sin 2."""
    rem_gate: float = 0.0
    """Initial mu; sigmoid(mu) is the recurrence's share."""
    rem_truncate: int | None = None
    """The longest lag with a weight; None: no limit."""
    recurrent_layers: tuple[int, ...] | list[int] = ()
    """Layers with a state of their own (Block-Recurrent Transformer), counted from 1 at the bottom;
    the original has one, the third from the top. RecurrenceConfig(carry="blocks") carries the states."""
    state_vectors: int = 512
    """Vectors in the state of each recurrent layer (S)."""
    state_gate: str = "fixed"
    """The gate that adds new values to a state: "fixed" (one learned share per feature) or "lstm"."""
    state_path: str = "skip"
    """How a state vector processes what it has read: a name in STATE_PATHS."""
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None


def check_sizes(config: TransformerXLConfig) -> None:
    """Refuse sizes that no model can have, with a clearer message than torch's."""
    for name in (
        "vocab_size",
        "n_layer",
        "d_model",
        "n_head",
        "d_head",
        "d_inner",
        "state_vectors",
    ):
        value = getattr(config, name)
        if not _is_whole(value) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1.")
    if config.d_model % 2:
        raise ValueError(
            f"d_model={config.d_model} must be even: half of a position's features are cosines."
        )
    if config.clamp_len is not None and config.clamp_len < 1:
        raise ValueError(
            f"clamp_len={config.clamp_len} must be at least 1, or none to distinguish all distances."
        )
    _check_recurrent_layers(config)


def _check_recurrent_layers(config: TransformerXLConfig) -> None:
    layers = config.recurrent_layers
    named = isinstance(layers, list | tuple) and all(
        _is_whole(layer) and 1 <= layer <= config.n_layer for layer in layers
    )
    if not named or len(set(layers)) < len(layers):
        raise ValueError(
            f"recurrent_layers={layers!r} must be a list of different layers from 1 (the lowest) to "
            f"n_layer={config.n_layer}, such as [{max(1, config.n_layer - 2)}], or an empty one."
        )
    for name, choices in (("state_gate", tuple(GATES)), ("state_path", STATE_PATHS)):
        if getattr(config, name) not in choices:
            raise ValueError(
                f"{name}={getattr(config, name)!r} is not a choice; use one of "
                f"{', '.join(map(repr, choices))}."
            )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
