"""Recurrent architectures of our own, in Hugging Face form.

They stand in BACKBONES like any other architecture, so that states, training, evaluation, generation
and saving work for them unchanged. Importing this module registers them with AutoConfig, AutoModel and
AutoModelForCausalLM.
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
