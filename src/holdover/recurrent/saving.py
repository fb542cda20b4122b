"""Saving and loading, the Hugging Face way.

* The whole model: `config.json` and `model.safetensors`, as any transformers model, hub included.
* Only what was added: `holdover_config.json` and `holdover.safetensors`, with the name of the base.
"""

import copy
import json
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub import HfApi
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from ..backbones.heads import class_named
from ..backbones.hooks import is_attached
from ..ops.rem import RecurrenceEncoding
from ..storage import write_atomically

ADDED_CONFIG = "holdover_config.json"
ADDED_WEIGHTS = "holdover.safetensors"


class RecurrentModelConfig(PreTrainedConfig):
    """The stock configuration, the class it belongs to, and the recurrence."""

    model_type = "holdover"
    sub_configs: ClassVar[Any] = {"backbone": AutoConfig}  # pyright: ignore[reportAssignmentType]
    keys_to_ignore_at_inference: ClassVar = ["state"]

    def __init__(
        self,
        backbone: PreTrainedConfig | dict[str, Any] | None = None,
        architecture: str = "",
        recurrence: dict[str, Any] | None = None,
        adapter: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(backbone, dict):
            backbone = AutoConfig.for_model(**backbone)
        # A copy: transformers writes attention settings through to sub-configurations.
        self.backbone = copy.deepcopy(backbone)
        self.architecture = architecture
        self.recurrence = recurrence or {}
        self.adapter = adapter
        kwargs.setdefault("tie_word_embeddings", getattr(backbone, "tie_word_embeddings", True))
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int | None:
        """For beam search, which asks the configuration; the backbone's, and not saved twice."""
        return getattr(self.backbone, "vocab_size", None)


# AutoConfig and AutoTokenizer look at a folder's config.json and want to know its type.
AutoConfig.register(RecurrentModelConfig.model_type, RecurrentModelConfig, exist_ok=True)


def build_backbone(config: RecurrentModelConfig) -> PreTrainedModel:
    """A stock model of the right class; its weights are loaded into it afterwards."""
    model = class_named(config.architecture)(config.backbone)
    return inject_adapter(model, config.adapter)


def inject_adapter(model: Any, adapter: dict[str, Any] | None) -> Any:
    if adapter is None:
        return model
    from peft import get_peft_config, inject_adapter_in_model

    return inject_adapter_in_model(get_peft_config(dict(adapter)), model)


class Saving:
    """Mixed into RecurrentModel."""

    config: RecurrentModelConfig
    backbone: Any
    recurrence: Any

    def initialize_weights(self) -> None:
        # A model that was handed in keeps its weights, whatever their history.
        if not self._attached_to_existing:  # type: ignore[attr-defined]
            super().initialize_weights()  # type: ignore[misc]

    def _init_weights(self, module: Any) -> None:
        if module is self.recurrence or isinstance(module, RecurrenceEncoding):
            module.reset_parameters()

    def save_pretrained(
        self, save_directory: Any, *args: Any, only_added: bool = False, **kwargs: Any
    ) -> None:
        """Save the whole model, or with only_added=True what was added and the base's name."""
        self.config.backbone = copy.deepcopy(self.backbone.config)
        if not only_added:
            super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]
            return
        name = self.backbone.config._name_or_path or self.backbone.name_or_path
        if not name:
            raise ValueError(
                "The base model has no name to refer to (it was not loaded with from_pretrained): "
                "save the whole model, without only_added."
            )
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {
            key: tensor.detach().cpu().contiguous()
            for key, tensor in self.state_dict().items()  # type: ignore[attr-defined]
            if key.startswith("recurrence.") or "lora_" in key
        }
        about = {
            "base_model_name_or_path": name,
            "revision": getattr(self.backbone.config, "_commit_hash", None),
            "architecture": self.config.architecture,
            "recurrence": self.config.recurrence,
            "adapter": self.config.adapter,
        }
        write_atomically(folder / ADDED_WEIGHTS, to_safetensors(weights, metadata={"format": "pt"}))
        write_atomically(folder / ADDED_CONFIG, json.dumps(about, indent=2).encode())

    def push_to_hub(self, repo_id: str, *, only_added: bool = False, **options: Any) -> str:
        """Upload the whole model, or with only_added=True what was added."""
        if not only_added:
            return super().push_to_hub(repo_id, **options)  # type: ignore[misc]
        api = HfApi(token=options.pop("token", None))
        repo_id = api.create_repo(
            repo_id, private=options.pop("private", None), exist_ok=True
        ).repo_id
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, only_added=True)
            return str(api.upload_folder(repo_id=repo_id, folder_path=folder, **options))

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, base_model: Any = None, **kwargs: Any
    ) -> Any:
        """Load a whole model, or what was added together with its base.

        base_model: a model, or the name of one, to use in place of the recorded base.
        """
        found = _find(pretrained_model_name_or_path, ADDED_CONFIG, kwargs)
        if found is None:
            if base_model is not None:
                raise ValueError(
                    f"{pretrained_model_name_or_path} holds no {ADDED_CONFIG}: it is a whole model "
                    "and takes no base_model."
                )
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)  # type: ignore[misc]
        about = json.loads(found.read_text())
        weights = _find(pretrained_model_name_or_path, ADDED_WEIGHTS, kwargs)
        if weights is None:
            raise FileNotFoundError(
                f"{pretrained_model_name_or_path} has {ADDED_CONFIG} but no {ADDED_WEIGHTS}: the "
                "save was interrupted; save the model again."
            )
        return cls._on_base(about, load_file(weights), base_model, kwargs)

    @classmethod
    def _on_base(
        cls, about: dict[str, Any], weights: dict[str, Any], base: Any, kwargs: dict[str, Any]
    ) -> Any:
        if base is None or isinstance(base, str):
            name = base or about["base_model_name_or_path"]
            if base is None and not Path(name).exists() and about["revision"] is not None:
                kwargs.setdefault("revision", about["revision"])
            try:
                base = class_named(about["architecture"]).from_pretrained(name, **kwargs)
            except OSError as error:
                raise OSError(
                    f"The base model {name} of these added weights could not be loaded ({error}): "
                    "load it yourself and give it as base_model=..."
                ) from error
        if type(base).__name__ != about["architecture"]:
            raise ValueError(
                f"What was added belongs to {about['architecture']}, and the base given is "
                f"{type(base).__name__}."
            )
        if is_attached(base):
            raise ValueError(
                "Another recurrence is attached to this base model: call holdover.remove_recurrence on "
                "it first."
            )
        base = inject_adapter(base, about["adapter"])
        config = RecurrentModelConfig(
            base.config, about["architecture"], about["recurrence"], about["adapter"]
        )
        model = cls(config, backbone=base).to(dtype=base.dtype, device=base.device)  # type: ignore[call-arg]
        _, unexpected = model.load_state_dict(weights, strict=False)
        missing = [
            key
            for key in model.state_dict()
            if (key.startswith("recurrence.") or "lora_" in key) and key not in weights
        ]
        if missing or unexpected:
            raise ValueError(
                f"The added weights do not fit their configuration: missing {missing}, "
                f"unexpected {unexpected}."
            )
        return model.eval()


def _find(name: Any, file: str, kwargs: dict[str, Any]) -> Path | None:
    """A file of a folder or of a hub repository; None where it has none."""
    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    hub = {key: kwargs[key] for key in ("revision", "token", "cache_dir") if key in kwargs}
    path = cached_file(
        str(name),
        file,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
        **hub,
    )
    return None if path is None else Path(path)
