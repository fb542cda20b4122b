"""Informer (Zhou et al. 2021): an encoder that halves its steps, a decoder that forecasts all at once.

RSA-Informer is the same class with rsa=True: a recurrence in the self-attention of every layer.
"""

import torch
from torch import Tensor, nn

from .base import Forecaster
from .informer_attention import ProbSparse
from .informer_config import InformerConfig, check_sizes
from .informer_layers import DecoderLayer, Distilling, EncoderLayer, SeriesEmbedding


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
        asked = self.decoder_norm(hidden)[:, -self.config.pred_len :]
        return self.projection(asked)

    def encode(self, values: Tensor, marks: Tensor) -> Tensor:
        """[B, steps left, k]: halved behind every layer but the last."""
        hidden = self.encoder_embedding(values, marks)
        for index, layer in enumerate(self.encoder):
            hidden = layer(hidden)
            if index < len(self.distilling):
                hidden = self.distilling[index](hidden)
        return self.encoder_norm(hidden)

    def draw_from(self, generator: torch.Generator | None) -> None:
        """Draw the samples of ProbSparse attention from this in training; None is torch's own."""
        for module in self.modules():
            if isinstance(module, ProbSparse):
                module.generator = generator
