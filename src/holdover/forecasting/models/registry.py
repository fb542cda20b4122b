"""Every forecaster by name.

Importing this module registers them with AutoConfig and AutoModel.
"""

from transformers import AutoConfig, AutoModel

from .base import Forecaster
from .baselines import DLinear, LSTMForecaster, Repeat, SeasonalRepeat
from .informer import Informer

FORECASTERS: dict[str, type[Forecaster]] = {
    "informer": Informer,
    "dlinear": DLinear,
    "lstm": LSTMForecaster,
    "repeat": Repeat,
    "seasonal": SeasonalRepeat,
}

for forecaster in FORECASTERS.values():
    AutoConfig.register(forecaster.config_class.model_type, forecaster.config_class, exist_ok=True)
    AutoModel.register(forecaster.config_class, forecaster, exist_ok=True)
