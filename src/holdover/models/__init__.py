"""Recurrent models of our own, in Hugging Face form: what no pretrained model can be given afterwards.

They have rows in BACKBONES like any other, so that the state, training, evaluation, writing and saving
are those of every recurrent model. A model is known to AutoConfig and AutoModelForCausalLM once
holdover is imported.
"""

from typing import Any, Literal

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

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

__all__ = ["MODELS", "TransformerXLConfig", "TransformerXLForCausalLM", "TransformerXLModel"]
