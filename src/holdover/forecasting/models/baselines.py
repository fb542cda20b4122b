"""Simple forecasters with the same call as Informer, to compare it with."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Forecaster, ForecasterConfig, check_share, check_whole


class RepeatConfig(ForecasterConfig):
    model_type = "holdover_repeat"


class Repeat(Forecaster):
    """The last observed value, at every step. It has no weights."""

    config_class = RepeatConfig
    period = 1

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        _check_targets(config)
        # transformers cannot save a model without tensors; this one has no elements.
        self.nothing = nn.Parameter(torch.empty(0), requires_grad=False)
        self.post_init()

    def read(self, values: Tensor, *others: Tensor | None) -> Tensor:
        steps = torch.arange(self.config.pred_len, device=values.device) % self.period
        return _targets(values, self.config)[:, values.shape[1] - self.period + steps]


class SeasonalRepeatConfig(ForecasterConfig):
    model_type = "holdover_seasonal"

    period: int = 24
    """Steps after which the series is assumed to repeat."""


class SeasonalRepeat(Repeat):
    """The value one period earlier: repeats the last observed period. It has no weights."""

    config_class = SeasonalRepeatConfig

    def __init__(self, config: SeasonalRepeatConfig) -> None:
        super().__init__(config)
        check_whole(config, "period")
        if config.period > config.seq_len:
            raise ValueError(
                f"period={config.period} must be at most seq_len={config.seq_len}, the number of "
                "observed steps; give a shorter period, or more steps."
            )
        self.period = config.period


class DLinearConfig(ForecasterConfig):
    model_type = "holdover_dlinear"

    moving_average: int = 25
    """Steps of the moving average that is the trend; odd."""
    individual: bool = False
    """Separate weights for every channel, instead of one set for all."""


class DLinear(Forecaster):
    """DLinear (Zeng et al. 2023): a linear map over time of the trend, and one of the remainder.

    The trend is a moving average; beyond both ends of the series its end values are repeated. Every
    channel is forecast only from itself.
    """

    config_class = DLinearConfig

    def __init__(self, config: DLinearConfig) -> None:
        super().__init__(config)
        check_whole(config, "moving_average")
        if config.moving_average % 2 == 0:
            raise ValueError(
                f"moving_average={config.moving_average} must be odd: as many steps before the middle "
                "as after it."
            )
        _check_targets(config)
        sets = config.c_out if config.individual else 1
        self.trend = TimeMap(sets, config.seq_len, config.pred_len)
        self.season = TimeMap(sets, config.seq_len, config.pred_len)
        self.post_init()

    def read(self, values: Tensor, *others: Tensor | None) -> Tensor:
        series = _targets(values, self.config).transpose(1, 2)
        width = self.config.moving_average
        padded = F.pad(series, (width // 2, width // 2), mode="replicate")
        trend = F.avg_pool1d(padded, width, stride=1)
        return (self.trend(trend) + self.season(series - trend)).transpose(1, 2)


class TimeMap(nn.Module):
    """A linear map over time of every channel: [B, C, S] -> [B, C, P], with 1 or C sets of weights."""

    def __init__(self, sets: int, observed: int, ahead: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(sets, ahead, observed))
        self.bias = nn.Parameter(torch.empty(sets, ahead))

    def reset_parameters(self) -> None:
        # torch's initial weights of a linear map.
        spread = 1 / math.sqrt(self.weight.shape[2])
        nn.init.uniform_(self.weight, -spread, spread)
        nn.init.uniform_(self.bias, -spread, spread)

    def forward(self, series: Tensor) -> Tensor:
        weight = self.weight.expand(series.shape[1], -1, -1)
        return torch.einsum("cps,bcs->bcp", weight, series) + self.bias


class LSTMForecasterConfig(ForecasterConfig):
    model_type = "holdover_lstm"

    hidden_size: int = 128
    num_layers: int = 1
    dropout: float = 0.0
    """Dropout between layers of the LSTM, and before the output map."""


class LSTMForecaster(Forecaster):
    """An LSTM over values and marks; its last output is mapped to all steps and channels at once."""

    config_class = LSTMForecasterConfig

    def __init__(self, config: LSTMForecasterConfig) -> None:
        super().__init__(config)
        check_whole(config, "hidden_size", "num_layers")
        check_share(config, "dropout")
        self.lstm = nn.LSTM(
            config.enc_in + config.time_features,
            config.hidden_size,
            config.num_layers,
            batch_first=True,
            # torch warns about dropout if there is only one layer.
            dropout=config.dropout if config.num_layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.projection = nn.Linear(config.hidden_size, config.pred_len * config.c_out)
        self.post_init()

    def read(self, values: Tensor, marks: Tensor, *others: Tensor | None) -> Tensor:
        outputs = self.lstm(torch.cat([values, marks], 2))[0]
        forecast = self.projection(self.dropout(outputs[:, -1]))
        return forecast.unflatten(1, (self.config.pred_len, self.config.c_out))


def _targets(values: Tensor, config: Any) -> Tensor:
    """[B, S, O] the channels to forecast."""
    return values[:, :, config.enc_in - config.c_out :]


def _check_targets(config: ForecasterConfig) -> None:
    if config.c_out > config.enc_in:
        raise ValueError(
            f"c_out={config.c_out} must be at most enc_in={config.enc_in}: this model forecasts a "
            "channel from its own past."
        )
