"""Recurrent models of our own, in Hugging Face form: what no pretrained model can be given afterwards.

They have rows in BACKBONES like any other, so that the state, training, evaluation, writing and saving
are those of every recurrent model. A model is known to AutoConfig and AutoModelForCausalLM once
holdover is imported. Forecasters of series read no tokens and have no such rows; they are known to
AutoConfig and AutoModel.
"""

from typing import Any, Literal

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .forecasters import FORECASTERS
from .informer import Informer
from .informer_config import InformerConfig
from .transformer_xl import TransformerXLForCausalLM, TransformerXLModel
from .transformer_xl_config import TransformerXLConfig

# Of each architecture the class for every head, as transformers' own auto mappings list them.
MODELS: dict[str, dict[Literal["bare", "causal-lm"], Any]] = {
    TransformerXLConfig.model_type: {
        "bare": TransformerXLModel,
        "causal-lm": TransformerXLForCausalLM,
    },
}

AutoConfig.register(TransformerXLConfig.model_type, TransformerXLConfig, exist_ok=True)
AutoModel.register(TransformerXLConfig, TransformerXLModel, exist_ok=True)
AutoModelForCausalLM.register(TransformerXLConfig, TransformerXLForCausalLM, exist_ok=True)
for forecaster in FORECASTERS.values():
    AutoConfig.register(forecaster.config_class.model_type, forecaster.config_class, exist_ok=True)
    AutoModel.register(forecaster.config_class, forecaster, exist_ok=True)

__all__ = [
    "FORECASTERS",
    "MODELS",
    "Informer",
    "InformerConfig",
    "TransformerXLConfig",
    "TransformerXLForCausalLM",
    "TransformerXLModel",
]
