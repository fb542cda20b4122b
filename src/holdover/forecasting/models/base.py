"""What every forecaster shares: the sizes of windows, the call, and its output.

    forward(values [B, S, C], marks [B, S, F],
            decoder_values [B, N + P, C'], decoder_marks [B, N + P, F])
    forecast(values, marks, future_marks [B, P, F]) -> [B, P, O]

S = seq_len steps of C = enc_in channels are observed, and the next P = pred_len steps are forecast.
Marks are the calendar features of a step. The last O = c_out channels are forecast: all of them, or a
target in last place. A decoder starts with the last N = label_len observed steps of its C' = dec_in
channels, followed by zeros for the steps to forecast, so it cannot see their values. Models without a
decoder read only the observed steps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from ...recurrent.compile import compiler_options


class ForecasterConfig(PreTrainedConfig):
    """Sizes of inputs and forecasts; the defaults are Informer's for hourly ETT data."""

    enc_in: int = 7
    """Channels observed."""
    dec_in: int = 7
    """Channels the decoder reads; `forecast` needs dec_in = enc_in."""
    c_out: int = 7
    """Channels forecast: the last ones."""
    seq_len: int = 96
    """Steps observed."""
    label_len: int = 48
    """Observed steps that the decoder reads again, before the steps it forecasts."""
    pred_len: int = 24
    """Steps forecast."""
    time_features: int = 4
    """Columns of the time marks; 0 for a series without dates."""


def check_series(config: ForecasterConfig) -> None:
    """Refuse impossible sizes."""
    check_whole(config, "enc_in", "dec_in", "c_out", "seq_len", "pred_len")
    check_whole(config, "label_len", "time_features", least=0)
    if config.label_len > config.seq_len:
        raise ValueError(
            f"label_len={config.label_len} must be at most seq_len={config.seq_len}: the decoder "
            "starts with observed steps."
        )


def check_whole(config: PreTrainedConfig, *names: str, least: int = 1) -> None:
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")


def check_choice(config: PreTrainedConfig, name: str, choices: Any) -> None:
    if getattr(config, name) not in choices:
        raise ValueError(
            f"{name}={getattr(config, name)!r} is not a valid choice; use one of "
            f"{', '.join(map(repr, choices))}."
        )


def check_share(config: PreTrainedConfig, name: str) -> None:
    value = getattr(config, name)
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"{name}={value!r} must be a number of at least 0 and less than 1.")


@dataclass
class ForecastOutput(ModelOutput):
    forecast: Tensor | None = None  # [B, P, O]


class Forecaster(PreTrainedModel):
    """A model with the call above. Subclasses define `read`, and `decodes` if they have a decoder."""

    config_class: type[ForecasterConfig] = ForecasterConfig
    main_input_name = "values"
    decodes = False
    """Whether the model reads the decoder inputs."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        check_series(config)
        self._compiled: Callable[..., Tensor] | None = None

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # torch's own initial weights, which the published models use as well.
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()

    def forward(
        self,
        values: Tensor,
        marks: Tensor,
        decoder_values: Tensor | None = None,
        decoder_marks: Tensor | None = None,
    ) -> ForecastOutput:
        config = self.config
        steps = config.label_len + config.pred_len
        expected: dict[str, tuple[Tensor | None, int, int]] = {
            "values": (values, config.seq_len, config.enc_in),
            "marks": (marks, config.seq_len, config.time_features),
        }
        if self.decodes:
            expected["decoder_values"] = (decoder_values, steps, config.dec_in)
            expected["decoder_marks"] = (decoder_marks, steps, config.time_features)
        for name, (tensor, length, columns) in expected.items():
            _check_shape(name, tensor, (values.shape[0], length, columns))
        read = self._compiled if self.training and self._compiled is not None else self.read
        return ForecastOutput(forecast=read(values, marks, decoder_values, decoder_marks))

    def read(
        self,
        values: Tensor,
        marks: Tensor,
        decoder_values: Tensor | None,
        decoder_marks: Tensor | None,
    ) -> Tensor:
        """[B, P, O], from checked inputs."""
        raise NotImplementedError

    def compile_reading(self) -> None:
        """Compile `read` for training with batches of one size; evaluation stays uncompiled.

        Random numbers stay those of the uncompiled model, so their gradients can be compared.
        """
        same_numbers: dict[str, Any] = {"fallback_random": True}
        compiled: Any = torch.compile(
            self.read, fullgraph=True, dynamic=False, options=same_numbers | compiler_options()
        )
        self._compiled = compiled

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """In this context the model runs uncompiled."""
        before, self._compiled = self._compiled, None
        try:
            yield
        finally:
            self._compiled = before

    def forecast(self, values: Tensor, marks: Tensor, future_marks: Tensor) -> Tensor:
        """[B, P, O]: the steps after the observed ones, whose marks are given."""
        config = self.config
        _check_shape(
            "future_marks", future_marks, (len(values), config.pred_len, config.time_features)
        )
        if not self.decodes:
            return self(values, marks).forecast
        if config.dec_in != config.enc_in:
            raise ValueError(
                f"forecast() gives the decoder the observed channels, but dec_in={config.dec_in} is "
                f"not enc_in={config.enc_in}; call the model with decoder_values instead."
            )
        begin = config.seq_len - config.label_len
        zeros = values.new_zeros(len(values), config.pred_len, config.dec_in)
        decoder_values = torch.cat([values[:, begin:], zeros], 1)
        decoder_marks = torch.cat([marks[:, begin:], future_marks], 1)
        return self(values, marks, decoder_values, decoder_marks).forecast


def _check_shape(name: str, tensor: Tensor | None, shape: tuple[int, int, int]) -> None:
    if tensor is None:
        raise ValueError(f"{name} is missing; give a tensor of {list(shape)}.")
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} has the shape {list(tensor.shape)}, but the model's configuration expects "
            f"{list(shape)} for [windows, steps, columns]; give it that, or change the configuration."
        )
