"""Recurrent architectures of our own, as Hugging Face models.

BACKBONES lists them like any other architecture, so that states, training, evaluation, generation and
saving work unchanged. Importing this module registers them with AutoConfig, AutoModel and
AutoModelForCausalLM.
"""

from typing import Any, Literal

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .transformer_xl import TransformerXLForCausalLM, TransformerXLModel
from .transformer_xl_config import TransformerXLConfig

# For each architecture the class of every head, as in transformers' auto mappings.
MODELS: dict[str, dict[Literal["bare", "causal-lm"], Any]] = {
    TransformerXLConfig.model_type: {
        "bare": TransformerXLModel,
        "causal-lm": TransformerXLForCausalLM,
    },
}

AutoConfig.register(TransformerXLConfig.model_type, TransformerXLConfig, exist_ok=True)
AutoModel.register(TransformerXLConfig, TransformerXLModel, exist_ok=True)
AutoModelForCausalLM.register(TransformerXLConfig, TransformerXLForCausalLM, exist_ok=True)
