"""Saving and loading, the Hugging Face way.

* The whole model: `config.json` and `model.safetensors`, as any transformers model, also on the hub.
* Only the added weights: `holdover_config.json` and `holdover.safetensors`, with the base's name.
* Files are not trusted: class names are looked up in our own table, and weights are safetensors only.
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

from ..backbones.heads import class_named, head_classes
from ..backbones.hooks import is_attached
from ..backbones.registry import BACKBONES
from ..backbones.safe_loading import find_file, loading_options, refuse_pickles
from ..ops.rem import RecurrenceEncoding
from ..storage import ADDED, MODEL, check_content, check_version, with_version, write_atomically

ADDED_CONFIG = ADDED.file
ADDED_WEIGHTS = "holdover.safetensors"
ADDED_FIELDS = ("base_model_name_or_path", "revision", "architecture", "recurrence", "adapter")


class RecurrentModelConfig(PreTrainedConfig):
    """The stock configuration, the name of the stock model's class, and the recurrence."""

    model_type = "holdover"
    sub_configs: ClassVar[Any] = {"backbone": AutoConfig}  # pyright: ignore[reportAssignmentType]
    keys_to_ignore_at_inference: ClassVar = ["state"]

    def __init__(
        self,
        backbone: PreTrainedConfig | dict[str, Any] | None = None,
        architecture: str = "",
        recurrence: dict[str, Any] | None = None,
        adapter: dict[str, Any] | None = None,
        format_version: int = 0,
        **kwargs: Any,
    ) -> None:
        check_version(MODEL, format_version, kwargs.get("_name_or_path") or MODEL.file)
        self.format_version = MODEL.version
        if isinstance(backbone, dict):
            backbone = AutoConfig.for_model(**backbone)
        # A copy: transformers writes attention settings into nested configurations.
        self.backbone = copy.deepcopy(backbone)
        self.architecture = architecture
        self.recurrence = recurrence or {}
        self.adapter = adapter
        kwargs.setdefault("tie_word_embeddings", getattr(backbone, "tie_word_embeddings", True))
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int | None:
        """The backbone's, for beam search. A property is not saved a second time."""
        return getattr(self.backbone, "vocab_size", None)


# AutoConfig and AutoTokenizer need to know the model type in a folder's config.json.
AutoConfig.register(RecurrentModelConfig.model_type, RecurrentModelConfig, exist_ok=True)


def build_backbone(config: RecurrentModelConfig) -> PreTrainedModel:
    """A stock model of the right class. Its weights are loaded into it afterwards."""
    model_class = class_named(config.architecture)
    model_type = getattr(config.backbone, "model_type", "")
    row = BACKBONES.get(model_type)
    if row is None or config.architecture not in head_classes(model_type, row).values():
        raise ValueError(
            f"The saved configuration is wrong: {config.architecture} is not a class for the model type "
            f"{model_type!r}."
        )
    return inject_adapter(model_class(config.backbone), config.adapter)


def inject_adapter(model: Any, adapter: dict[str, Any] | None) -> Any:
    if adapter is None:
        return model
    from peft import get_peft_config, inject_adapter_in_model

    # Other kinds of adapters can name files to load.
    if adapter.get("peft_type") != "LORA":
        raise ValueError(
            f"The saved adapter is of the kind {adapter.get('peft_type')!r}: holdover loads only LORA."
        )
    return inject_adapter_in_model(get_peft_config(dict(adapter)), model)


class Saving:
    """Mixed into RecurrentModel."""

    config: RecurrentModelConfig
    backbone: Any
    recurrence: Any

    def initialize_weights(self) -> None:
        # A model that the caller gave keeps its weights.
        if not self._attached_to_existing:  # type: ignore[attr-defined]
            super().initialize_weights()  # type: ignore[misc]

    def _init_weights(self, module: Any) -> None:
        if module is self.recurrence or isinstance(module, RecurrenceEncoding):
            module.reset_parameters()

    def save_pretrained(
        self, save_directory: Any, *args: Any, only_added: bool = False, **kwargs: Any
    ) -> None:
        """Save the whole model, or with only_added=True the added weights and the base's name."""
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
        content = json.dumps(with_version(ADDED, about), indent=2)
        write_atomically(folder / ADDED_CONFIG, content.encode())

    def push_to_hub(self, repo_id: str, *, only_added: bool = False, **options: Any) -> str:
        """Upload the whole model, or with only_added=True the added weights."""
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
        """Load a whole model, or added weights together with their base.

        base_model: a model, or the name of one, to use in place of the recorded base.
        Weights are read from safetensors only. No Python code that comes with a model is executed.
        """
        name = pretrained_model_name_or_path
        if kwargs.pop("use_safetensors", True) is False:
            raise ValueError(
                "use_safetensors=False asks for a pickle, and holdover reads only safetensors: leave it "
                "out."
            )
        kwargs |= loading_options(trust_remote_code=False)
        config_file = find_file(name, ADDED_CONFIG, **kwargs)
        if config_file is None:
            if base_model is not None:
                raise ValueError(
                    f"{name} holds no {ADDED_CONFIG}: it is a whole model and takes no base_model."
                )
            refuse_pickles(name, **kwargs)
            return super().from_pretrained(name, *args, **kwargs)  # type: ignore[misc]
        about = read_added(config_file)
        weights = find_file(name, ADDED_WEIGHTS, **kwargs)
        if weights is None:
            raise FileNotFoundError(
                f"{name} has {ADDED_CONFIG} but no {ADDED_WEIGHTS}: the save was interrupted; save the "
                "model again."
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
            model_class = class_named(about["architecture"])
            try:
                refuse_pickles(name, **kwargs)
                base = model_class.from_pretrained(name, **kwargs)
            except OSError as error:
                raise OSError(
                    f"The base model {name} of these added weights could not be loaded ({error}): "
                    "load it yourself and give it as base_model=..."
                ) from error
        if type(base).__name__ != about["architecture"]:
            raise ValueError(
                f"The added weights belong to {about['architecture']}, and base_model is "
                f"{type(base).__name__}: give a model of that class."
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


def read_added(path: Path) -> dict[str, Any]:
    """The description of added weights, if this holdover can read it."""
    try:
        about = check_content(ADDED, json.loads(path.read_text()), path, ADDED_FIELDS)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}): save the model again.") from error
    missing = [name for name in ADDED_FIELDS if name not in about]
    if missing:
        raise ValueError(
            f"{path} is damaged: it has no {', '.join(missing)}; save the model again."
        )
    return about
