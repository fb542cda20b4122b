"""Language models by name: a stock one, one with a recurrence, a run's best, or a random one."""

import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from ..backbones.registry import BACKBONES
from ..bundled import PLAIN, RECURRENT, bundled_model
from ..config import RecurrenceConfig
from ..recurrent.attach import add_recurrence, remove_recurrence
from ..recurrent.model import RecurrentModel
from ..recurrent.saving import ADDED_CONFIG, RecurrentModelConfig

# The link to a run's best checkpoint, and what its checkpoints are called.
BEST = "best"
CHECKPOINT = "checkpoint-"
# What a run says of itself, in its folder and in every checkpoint.
RUN = "holdover_run.json"


def model_folder(name: str) -> str:
    """The model's own name; of a model in the package its folder, of a run its best checkpoint (else
    its last)."""
    folder = Path(name)
    if not folder.exists() and (found := bundled_model(name)) is not None:
        return str(found)
    if not folder.is_dir() or (folder / "config.json").exists() or (folder / ADDED_CONFIG).exists():
        return name
    if (folder / BEST).exists():
        return str((folder / BEST).resolve())
    found = numbered(folder)
    if not found and not any(folder.iterdir()):
        raise ValueError(f"The folder {name} is empty: give one with a model, or a run's.")
    return str(found[-1]) if found else name


def numbered(folder: Path) -> list[Path]:
    """The checkpoints of a run's folder, the newest last."""
    found = {path.name.removeprefix(CHECKPOINT): path for path in folder.glob(f"{CHECKPOINT}*")}
    return [found[number] for number in sorted(filter(str.isdigit, found), key=int)]


def read_run(path: Path) -> dict[str, Any]:
    """What a run wrote of itself."""
    try:
        found = json.loads(path.read_text())
        missing = {"options", "data", "provenance"} - set(found)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): copy it from one of the run's checkpoints."
        ) from error
    if missing:
        raise ValueError(f"{path} is damaged: it does not say its {', '.join(sorted(missing))}.")
    return found


def recurrence_of(name: str) -> dict[str, Any] | None:
    """The recurrence of a holdover model in a folder; None where it is something else."""
    folder = Path(model_folder(name))
    for file in (ADDED_CONFIG, "config.json"):
        path = folder / file
        if path.is_file():
            try:
                found = json.loads(path.read_text()).get("recurrence")
            except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
                raise ValueError(f"{path} is damaged ({error}): save the model again.") from error
            if found:
                return found
    return None


def open_base(name: str, *, gguf_file: str | None = None) -> Any:
    """A language model of transformers, without a recurrence."""
    options: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
    with quietly(), _refusing(name):
        # Files may hold half precision; training and comparisons use float32.
        model = AutoModelForCausalLM.from_pretrained(
            model_folder(name), dtype=torch.float32, **options
        )
    return in_own_memory(model)


def open_model(
    name: str, recurrence: RecurrenceConfig | None = None, *, gguf_file: str | None = None
) -> RecurrentModel:
    """A language model with a recurrence: its own, or `recurrence` attached to a plain one."""
    found = recurrence_of(name)
    if found is None:
        model = open_base(name, gguf_file=gguf_file)
        return add_recurrence(model, recurrence or RecurrenceConfig(carry="none"))
    with quietly(), _refusing(name):
        model = RecurrentModel.from_pretrained(model_folder(name), dtype=torch.float32)
    model = in_own_memory(model)
    own = RecurrenceConfig.from_dict(found)
    if recurrence is None:
        return model
    if recurrence.state_fields() == own.state_fields():
        # The rest says how to train, and may be another every time.
        model.settings = model.recurrence.settings = recurrence
        model.config.recurrence = recurrence.to_dict()
        model.horizon = 1 if recurrence.detach_state else recurrence.horizon
        model.recompute = recurrence.recompute
        return model
    if own.carry == "none" and not own.rsa:
        return add_recurrence(remove_recurrence(model), recurrence)
    differing = [
        f"{key} is {getattr(own, key)!r} in the model and {getattr(recurrence, key)!r} was asked for"
        for key in own.state_fields() | recurrence.state_fields()
        if getattr(own, key) != getattr(recurrence, key)
    ]
    raise ValueError(
        f"{name} was trained with another recurrence: {'; '.join(differing)}. Leave these settings out, "
        "or start from the base model."
    )


def configuration(name: str, shape: Mapping[str, Any], vocabulary: int | None = None) -> Any:
    """Of a model by name, or of a type of models (its default one), with some settings changed."""
    config: Any
    made: dict[str, Any] = {}
    with quietly(), _refusing(name):
        if name in BACKBONES and not Path(name).is_dir():
            made = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
            made |= {} if vocabulary is None else {"vocab_size": vocabulary}
            config = AutoConfig.for_model(name, **made)
        elif recurrence_of(name) is not None:
            config = RecurrentModelConfig.from_pretrained(model_folder(name)).backbone
        else:
            config = AutoConfig.from_pretrained(model_folder(name))
    for key in shape:
        if not hasattr(config, key):
            near = difflib.get_close_matches(key, list(config.to_dict()), n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else "."
            raise ValueError(f"shape: {key!r} is not a setting of {config.model_type} models{hint}")
    if not shape:
        return config
    with _refusing_shape(config, shape):
        if made:
            # Anew: some settings follow from others (the width of a head from the model's).
            return AutoConfig.for_model(name, **{**made, **shape})
        return type(config).from_dict({**config.to_dict(), **shape})


def random_model(
    name: str, shape: Mapping[str, Any], vocabulary: int, recurrence: RecurrenceConfig, seed: int
) -> RecurrentModel:
    """Random weights in the shape of a model, or of a type of models with some settings changed."""
    config = configuration(name, shape, vocabulary)
    torch.manual_seed(seed)
    model = from_configuration(config, shape)
    return add_recurrence(model, recurrence)


def from_configuration(config: Any, shape: Mapping[str, Any], **how: Any) -> Any:
    """A stock language model with random weights; how: as transformers' from_config takes it."""
    with _refusing_shape(config, shape):
        return AutoModelForCausalLM.from_config(config, **how)


@contextmanager
def _refusing_shape(config: Any, shape: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    # Whatever a model makes of a shape that is none: no two fail alike.
    except Exception as error:
        told = " ".join(str(error).split()).rstrip(".")
        given = ", ".join(f"{key}={value}" for key, value in shape.items())
        raise ValueError(
            f"shape: no {config.model_type} model can be made with {given or 'no changes'} ({told})."
        ) from error


def in_own_memory(model: Any) -> Any:
    """Weights copied out of the file that they are mapped from.

    There they begin anywhere, and with the place of a matrix the last bit of a product changes: a run
    that is continued from a file would not be the run that wrote it.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.clone()
    return model


@contextmanager
def quietly():
    """Without transformers' own bar for what takes a second."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def _refusing(name: str):
    """Failures of loading, each as one sentence."""
    try:
        yield
    except SafetensorError as error:
        raise ValueError(
            f"The weights of {name} are truncated or damaged ({error}): copy or save the model again."
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        told = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        near = difflib.get_close_matches(name, (PLAIN, RECURRENT), n=1)
        raise ValueError(
            f"The model {name} could not be opened ({told}): give a folder with a saved language model, "
            "a name that the Hugging Face hub knows and can be reached for, or a model of the package "
            f"({PLAIN}, {RECURRENT}){f'; did you mean {near[0]}?' if near else '.'}"
        ) from error
