"""What transformers asks of a model, answered by the backbone."""

from typing import Any

from torch import nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel

from .saving import RecurrentModelConfig


class StockInterface(GenerationMixin, PreTrainedModel):
    """Base of RecurrentModel: embeddings, generation settings and initialization are the backbone's."""

    config_class = RecurrentModelConfig
    main_input_name = "input_ids"
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True

    backbone: Any
    recurrence: Any
    recompute: str

    # One model, one set of defaults for generation, with and without the recurrence.

    @property
    def generation_config(self) -> GenerationConfig:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.backbone.generation_config

    @generation_config.setter
    def generation_config(self, config: GenerationConfig) -> None:
        self.backbone.generation_config = config

    def adjust_generation_fn(self, *args: Any, **kwargs: Any) -> None:
        """Models that were saved without generation_config.json keep their backbone's special tokens."""
        own = self.generation_config.to_dict()
        super().adjust_generation_fn(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        self.generation_config.update(**own, defaults_only=True)

    # Gradient checkpointing of single layers would run them again after their window was closed:
    # windows are recomputed as a whole instead.

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """Recompute window by window: holdover's form of gradient checkpointing."""
        self.recompute = "window"

    def gradient_checkpointing_disable(self) -> None:
        self.recompute = "none"

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.recompute != "none"

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module | None:
        return self.backbone.get_output_embeddings()

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.backbone.set_output_embeddings(value)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Module:
        return self.backbone.resize_token_embeddings(*args, **kwargs)

    @property
    def vocabulary(self) -> int:
        """Number of ids the embeddings hold, also after they were resized."""
        return self.backbone.get_input_embeddings().num_embeddings

    def _replicate_for_data_parallel(self) -> Any:
        raise RuntimeError(
            "nn.DataParallel copies a model for every call, and hooks stay on the original: use "
            "DistributedDataParallel (torchrun, accelerate launch, or holdover train --processes N)."
        )
