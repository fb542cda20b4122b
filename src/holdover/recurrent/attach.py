"""add_recurrence and remove_recurrence."""

from typing import Any

from transformers import PreTrainedModel

from ..backbones.hooks import is_attached
from ..backbones.registry import spec_of
from ..config import RecurrenceConfig
from .model import RecurrentModel
from .saving import RecurrentModelConfig


def add_recurrence(model: Any, config: RecurrenceConfig | None = None) -> RecurrentModel:
    """Attach a recurrent state to a pretrained Hugging Face model (or one with LoRA from peft).

    The model itself is used, not a copy; `remove_recurrence` gives it back.
    """
    config = config or RecurrenceConfig()
    if isinstance(model, RecurrentModel):
        raise ValueError(
            "This model has a recurrence already: call holdover.remove_recurrence(model) first."
        )
    backbone, adapter = _without_peft(model)
    if not isinstance(backbone, PreTrainedModel):
        raise TypeError(
            f"add_recurrence takes a Hugging Face transformers model, not {type(model).__name__}."
        )
    spec_of(backbone.config.model_type)
    if is_attached(backbone):
        raise ValueError(
            "Another recurrence is attached to this base model: call holdover.remove_recurrence on it "
            "first, or attach to a copy of the base."
        )
    attached = RecurrentModel(
        RecurrentModelConfig(
            backbone.config, type(backbone).__name__, config.to_dict(), adapter=adapter
        ),
        backbone=backbone,
    )
    attached.given = (model,)
    attached.recurrence.to(device=backbone.device, dtype=backbone.dtype)
    attached.train(backbone.training)
    return attached


def remove_recurrence(model: RecurrentModel) -> Any:
    """Take the recurrence off again; returns the model that was given to add_recurrence."""
    if not isinstance(model, RecurrentModel):
        raise TypeError(
            f"remove_recurrence takes what add_recurrence returned, not {type(model).__name__}."
        )
    model.hooks.remove()
    model.removed = True
    return model.given[0] if model.given else model.backbone


def _without_peft(model: Any) -> tuple[Any, dict[str, Any] | None]:
    """The transformers model inside a peft one, and the adapter's configuration."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        return model, None
    backbone = model.get_base_model() if hasattr(model, "get_base_model") else model
    if len(configs) > 1:
        raise ValueError(
            f"The model has {len(configs)} adapters ({', '.join(configs)}); holdover runs on one: "
            "delete or merge the others."
        )
    adapter = next(iter(configs.values()))
    if adapter.is_prompt_learning:
        raise ValueError(
            f"{adapter.peft_type.value} changes the input of the model, where holdover cuts windows: "
            "use an adapter inside the layers, such as LoRA."
        )
    name = adapter.peft_type.value
    if name != "LORA" or adapter.modules_to_save or adapter.bias != "none":
        raise ValueError(
            f"holdover saves and freezes LoRA adapters without further trained modules, not {name} with "
            f"modules_to_save={adapter.modules_to_save} and bias={getattr(adapter, 'bias', None)!r}: "
            "merge this adapter into the base first."
        )
    values = {
        key: sorted(value) if isinstance(value, set) else value
        for key, value in adapter.to_dict().items()
    }
    return backbone, values
