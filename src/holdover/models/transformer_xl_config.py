"""TransformerXLConfig: sizes, dropout, and how far a query looks."""

from typing import ClassVar

from transformers import PreTrainedConfig


class TransformerXLConfig(PreTrainedConfig):
    """The defaults are the 12 layers of the original for enwik8 and text8.

    How many positions are remembered is not the model's but the state's to say:
    RecurrenceConfig(carry="memory", memory_length=...). `clamp_len` and `same_length` hold no weights
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
    """Of embeddings, of the sinusoids R, and behind attention and each layer of the feed-forward map."""
    dropatt: float = 0.0
    """Of attention weights."""
    clamp_len: int | None = None
    """The largest distance that is told apart; none tells all apart."""
    same_length: bool = False
    """Every query reads as many keys as the memory holds positions, itself included, instead of the
    whole memory and what the segment holds before it."""
    attention: str = "relative"
    """What is made of scores and values: a name in ATTENTIONS."""
    rem_counts: tuple[int, ...] | list[int] = (0, 0, 0, 0, 2, 2)
    """With attention="rsa": heads with a regular, cos and sin recurrence, and with the dilated three."""
    rem_dilations: tuple[int, ...] | list[int] = (3, 6, 9, 12)
    """One for each dilated head, in the order cos 1, sin 1, cos 2, sin 2."""
    rem_gate: float = 0.0
    """Where mu begins; sigmoid(mu) is the recurrence's share."""
    rem_truncate: int | None = None
    """The longest lag that is weighed; none weighs all."""
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-5
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None


def check_sizes(config: TransformerXLConfig) -> None:
    """Refuse what no model can be made of, before torch does in its own words."""
    for name in ("vocab_size", "n_layer", "d_model", "n_head", "d_head", "d_inner"):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}={value!r} must be a whole number of at least 1.")
    if config.d_model % 2:
        raise ValueError(
            f"d_model={config.d_model} must be even: half of a position's sinusoids are cosines."
        )
    if config.clamp_len is not None and config.clamp_len < 1:
        raise ValueError(
            f"clamp_len={config.clamp_len} must be at least 1, or none to tell all distances apart."
        )
