"""InformerConfig: sizes, attention and recurrence of Informer, and their checks."""

from typing import ClassVar

from .base import ForecasterConfig, check_choice, check_share, check_whole

ATTENTIONS = ("prob", "full")
ACTIVATIONS = ("gelu", "relu")
# Size of every convolution over steps: in the embedding, and between the encoder's layers.
KERNEL = 3


class InformerConfig(ForecasterConfig):
    """The defaults are the published ones; with rsa=True the model is RSA-Informer.

    `sample_seed` does not affect weights and may be changed in a trained model.
    """

    model_type = "holdover_informer"
    attribute_map: ClassVar = {
        "hidden_size": "d_model",
        "num_hidden_layers": "e_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "d_ff",
    }

    d_model: int = 512
    n_heads: int = 8
    e_layers: int = 2
    """Layers of the encoder."""
    d_layers: int = 1
    """Layers of the decoder."""
    d_ff: int = 2048
    attention: str = "prob"
    """Self-attention: "prob" (few queries attend) or "full". The decoder's attention to the encoder is
    always full."""
    factor: int = 5
    """With attention="prob": c in c ceil(ln L), for the queries that attend and the keys sampled."""
    sample_seed: int = 0
    """With attention="prob": the seed for the keys sampled in evaluation."""
    distil: bool = True
    """Halve the steps between the encoder's layers."""
    mix: bool = True
    """Join the heads of the decoder's self-attention in the published order: a row of the result then
    holds several steps of one head, including later ones, instead of one step of all heads. The last
    rows are forecast, and they hold the last heads. So in the last layer of the decoder, the first
    label_len / (label_len + pred_len) of the heads, and any recurrence in them, do not affect the
    forecast and do not learn."""
    dropout: float = 0.05
    """Dropout of embeddings, after attention and each layer of the feed-forward map, and of the weights
    of full attention; "prob" has none in its weights."""
    activation: str = "gelu"
    rsa: bool = False
    """Add a recurrence to the self-attention of encoder (both directions) and decoder (causal)."""
    rem_counts: tuple[int, ...] | list[int] = (0, 2, 2, 0, 2, 2)
    """With rsa: heads with a regular, cos and sin recurrence, then with the dilated three."""
    rem_dilations: tuple[int, ...] | list[int] = (6, 6, 12, 12)
    """One for each dilated head, in the order regular, cos 1, sin 1, cos 2, sin 2. Not published for
    Informer; in hourly data 12 steps are half a day, and a full day after the first halving."""
    rem_gate: float = 0.0
    """Initial mu of each layer; sigmoid(mu) is the weight of the recurrence."""
    rem_truncate: int | None = None
    """The longest lag with a weight; none uses all lags."""
    lazy_rem: bool = False
    """With rsa and "prob": add the recurrence to the queries that do not attend as well."""


def check_sizes(config: InformerConfig) -> None:
    """Refuse impossible sizes, before torch does with a less clear message.

    `check_series` has checked the sizes that all forecasters share.
    """
    check_whole(config, "d_model", "n_heads", "e_layers", "d_layers", "d_ff", "factor")
    check_whole(config, "sample_seed", least=0)
    check_choice(config, "attention", ATTENTIONS)
    check_choice(config, "activation", ACTIVATIONS)
    check_share(config, "dropout")
    if config.d_model % config.n_heads or config.d_model % 2:
        raise ValueError(
            f"d_model={config.d_model} must be even and a multiple of n_heads={config.n_heads}: the "
            "heads divide it, and half of a position's sinusoids are cosines."
        )
    _check_lengths(config)
    _check_recurrence(config)


def encoder_lengths(config: InformerConfig) -> list[int]:
    """Steps that each layer of the encoder reads; each halving rounds up."""
    lengths = [config.seq_len]
    for _ in range(config.e_layers - 1):
        lengths.append(-(-lengths[-1] // 2) if config.distil else lengths[-1])
    return lengths


def _check_lengths(config: InformerConfig) -> None:
    # Over fewer steps than its kernel, a circular convolution would read some of them twice.
    shortest = min(encoder_lengths(config)[: max(1, config.e_layers - 1)])
    if shortest < KERNEL:
        raise ValueError(
            f"seq_len={config.seq_len} leaves {shortest} steps for a convolution over {KERNEL}, with "
            f"e_layers={config.e_layers} and distil={config.distil}; give more steps, or fewer layers "
            "to halve them."
        )
    if config.label_len + config.pred_len < KERNEL:
        raise ValueError(
            f"label_len={config.label_len} and pred_len={config.pred_len} leave fewer than {KERNEL} "
            "steps for the decoder's convolution; increase one of them."
        )


def _check_recurrence(config: InformerConfig) -> None:
    if config.lazy_rem and not (config.rsa and config.attention == "prob"):
        raise ValueError(
            'lazy_rem=True needs rsa=True and attention="prob", with which some queries do not attend; '
            "set these, or leave it out."
        )
    if not config.rsa:
        return
    for name in ("rem_counts", "rem_dilations"):
        numbers = getattr(config, name)
        if not isinstance(numbers, list | tuple) or not all(type(n) is int for n in numbers):
            raise ValueError(f"{name}={numbers!r} must be a list of whole numbers.")
    if sum(config.rem_counts) > config.n_heads:
        raise ValueError(
            f"rem_counts={tuple(config.rem_counts)} asks for {sum(config.rem_counts)} heads with a "
            f"recurrence, but n_heads={config.n_heads}: ask for fewer, or give more heads."
        )
