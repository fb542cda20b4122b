"""Informer (Zhou et al. 2021): an encoder that halves its steps, a decoder that forecasts all at once.

RSA-Informer is the same class with rsa=True: a recurrence in the self-attention of every layer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.relative import sinusoids
from .base import Forecaster
from .informer_attention import ProbSparse, cross_attention, self_attention
from .informer_config import KERNEL, InformerConfig, check_sizes


class CircularConv(nn.Conv1d):
    """Over each step and its two neighbours; the neighbours of the first are the second and the last.

    [B, T, channels] -> [B, T, width], as one product with the neighbours concatenated: torch's own
    convolution needs channels before steps, and would transpose the series twice.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__(channels, width, KERNEL)

    def forward(self, input: Tensor) -> Tensor:
        shifts = range(KERNEL // 2, KERNEL // 2 - KERNEL, -1)
        around = torch.cat([input.roll(shift, 1) for shift in shifts], 2)
        # [width, channels, places] -> [width, places * channels]
        return F.linear(around, self.weight.transpose(1, 2).flatten(1), self.bias)


class SeriesEmbedding(nn.Module):
    """conv(values) + sinusoids of the step + W marks: [B, T, channels], [B, T, F] -> [B, T, k]."""

    def __init__(self, channels: int, config: InformerConfig) -> None:
        super().__init__()
        width = config.d_model
        self.value = CircularConv(channels, width)
        self.time = nn.Linear(config.time_features, width) if config.time_features else None
        self.dropout = nn.Dropout(config.dropout)

    def reset_parameters(self) -> None:
        # The published initial weights; the bias and the map of the marks keep torch's.
        nn.init.kaiming_normal_(self.value.weight, nonlinearity="leaky_relu")

    def forward(self, values: Tensor, marks: Tensor) -> Tensor:
        embedded = self.value(values)
        embedded = embedded + step_sinusoids(*embedded.shape[1:], embedded)
        if self.time is not None:
            embedded = embedded + self.time(marks)
        return self.dropout(embedded)


def step_sinusoids(steps: int, width: int, like: Tensor) -> Tensor:
    """[T, width] sin and cos of step 0, 1, ... in turn: column 2m and 2m + 1 share a frequency."""
    precise = torch.promote_types(like.dtype, torch.float32)
    step = torch.arange(steps, device=like.device, dtype=precise)
    sines, cosines = sinusoids(step, width).chunk(2, 1)
    return torch.stack([sines, cosines], 2).flatten(1).to(like.dtype)


class Distilling(nn.Module):
    """MaxPool(ELU(BatchNorm(conv x))): [B, T, k] -> [B, ceil(T / 2), k]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = CircularConv(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, hidden: Tensor) -> Tensor:
        # The norm treats all steps of the batch alike and needs channels last.
        normed = self.norm(self.conv(hidden).flatten(0, 1)).view_as(hidden)
        steps_last = F.elu(normed).transpose(1, 2)
        return F.max_pool1d(steps_last, 3, stride=2, padding=1).transpose(1, 2).contiguous()


class FeedForward(nn.Module):
    """norm(x + W_2 activation(W_1 x)): the published convolutions over one step are linear maps."""

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = F.gelu if config.activation == "gelu" else F.relu

    def forward(self, hidden: Tensor) -> Tensor:
        mapped = self.outer(self.dropout(self.activation(self.inner(hidden))))
        return self.norm(hidden + self.dropout(mapped))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward map, each followed by a residual sum and a norm."""

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.attention = self_attention(config, masked=False)
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden)))
        return self.feed_forward(hidden)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder, and a feed-forward map."""

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.attention = self_attention(config, masked=True, mix=config.mix)
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.cross = cross_attention(config)
        self.cross_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: Tensor, encoded: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden)))
        hidden = self.cross_norm(hidden + self.dropout(self.cross(hidden, encoded)))
        return self.feed_forward(hidden)


class Informer(Forecaster):
    config_class = InformerConfig
    decodes = True

    def __init__(self, config: InformerConfig) -> None:
        super().__init__(config)
        check_sizes(config)
        width = config.d_model
        self.encoder_embedding = SeriesEmbedding(config.enc_in, config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.e_layers))
        halvings = config.e_layers - 1 if config.distil else 0
        self.distilling = nn.ModuleList(Distilling(width) for _ in range(halvings))
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder_embedding = SeriesEmbedding(config.dec_in, config)
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.d_layers))
        self.decoder_norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, config.c_out)
        self.post_init()

    def read(
        self,
        values: Tensor,
        marks: Tensor,
        decoder_values: Tensor | None,
        decoder_marks: Tensor | None,
    ) -> Tensor:
        hidden = self.decoder_embedding(decoder_values, decoder_marks)
        encoded = self.encode(values, marks)
        for layer in self.decoder:
            hidden = layer(hidden, encoded)
        future = self.decoder_norm(hidden)[:, -self.config.pred_len :]
        return self.projection(future)

    def encode(self, values: Tensor, marks: Tensor) -> Tensor:
        """[B, remaining steps, k]: halved after every layer except the last."""
        hidden = self.encoder_embedding(values, marks)
        for index, layer in enumerate(self.encoder):
            hidden = layer(hidden)
            if index < len(self.distilling):
                hidden = self.distilling[index](hidden)
        return self.encoder_norm(hidden)

    def draw_from(self, generator: torch.Generator | None) -> None:
        """Use this generator for the samples of ProbSparse attention in training; None uses torch's."""
        for module in self.modules():
            if isinstance(module, ProbSparse):
                module.generator = generator
