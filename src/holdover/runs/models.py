"""Models by name: a stock model, one with a recurrence, a run's best checkpoint, or random weights."""

import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from ..backbones.registry import BACKBONES
from ..backbones.safe_loading import (
    PickleError,
    RemoteCodeError,
    loading_options,
    refuse_pickles,
    refusing_code,
)
from ..bundled import PLAIN, RECURRENT, bundled_model
from ..config import RecurrenceConfig
from ..recurrent.attach import add_recurrence, remove_recurrence
from ..recurrent.model import RecurrentModel
from ..recurrent.saving import ADDED_CONFIG, RecurrentModelConfig
from ..storage import ADDED, MODEL, RUN_DESCRIPTION, NewerFormatError, check_content

# The link to a run's best checkpoint, and the prefix of all its checkpoints.
BEST = "best"
CHECKPOINT = "checkpoint-"
# The description of a run, in its folder and in every checkpoint.
RUN = RUN_DESCRIPTION.file


def model_folder(name: str) -> str:
    """The folder of a bundled model, the best checkpoint of a run (or its last); else the name."""
    folder = Path(name)
    if not folder.exists() and (bundled := bundled_model(name)) is not None:
        return str(bundled)
    if not folder.is_dir() or (folder / "config.json").exists() or (folder / ADDED_CONFIG).exists():
        return name
    if (folder / BEST).exists():
        return str((folder / BEST).resolve())
    checkpoints = numbered(folder)
    if not checkpoints and not any(folder.iterdir()):
        raise ValueError(f"The folder {name} is empty: give the folder of a model or of a run.")
    return str(checkpoints[-1]) if checkpoints else name


def numbered(folder: Path) -> list[Path]:
    """The checkpoints of a run's folder, the newest last."""
    paths = {path.name.removeprefix(CHECKPOINT): path for path in folder.glob(f"{CHECKPOINT}*")}
    return [paths[number] for number in sorted(filter(str.isdigit, paths), key=int)]


def read_run(path: Path) -> dict[str, Any]:
    """The description that a run wrote: its options, data and provenance."""
    try:
        run = check_content(RUN_DESCRIPTION, json.loads(path.read_text()), path)
    except NewerFormatError:
        raise
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}): copy it from one of the run's checkpoints."
        ) from error
    if missing := {"options", "data", "provenance"} - set(run):
        raise ValueError(f"{path} is damaged: it has no {', '.join(sorted(missing))}.")
    return run


def recurrence_of(name: str) -> dict[str, Any] | None:
    """The recurrence settings of a holdover model in a folder; None for any other model."""
    folder = Path(model_folder(name))
    for form in (ADDED, MODEL):
        path = folder / form.file
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text())
            recurrence = content.get("recurrence")
        except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}): save the model again.") from error
        # Stock models have no version of ours.
        if form is ADDED or content.get("model_type") == RecurrentModelConfig.model_type:
            check_content(form, content, path)
        if recurrence:
            return recurrence
    return None


def open_model(
    name: str,
    recurrence: RecurrenceConfig | None = None,
    *,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> RecurrentModel:
    """A language model with a recurrence: its own, or `recurrence` attached to a plain one."""
    saved = recurrence_of(name)
    model: Any
    if saved is None:
        model = open_stock(name, gguf_file=gguf_file, trust_remote_code=trust_remote_code)
        return add_recurrence(model, recurrence or RecurrenceConfig(carry="none"))
    with quietly(), _refusing(name):
        model = RecurrentModel.from_pretrained(model_folder(name), dtype=torch.float32)
    model = in_own_memory(model)
    own = RecurrenceConfig.from_dict(saved)
    if recurrence is None:
        return model
    if recurrence.state_fields() == own.state_fields():
        # The other fields say how to train, and may change from run to run.
        model.settings = recurrence
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


def open_stock(
    name: str,
    *,
    head: bool = True,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """A stock language model, or with head=False its backbone alone, in float32."""
    folder = model_folder(name)
    options = loading_options(trust_remote_code)
    if gguf_file is not None:
        options["gguf_file"] = gguf_file
    model_class: Any = AutoModelForCausalLM if head else AutoModel
    with quietly(), _refusing(name, "language model" if head else "model"), refusing_code(name):
        refuse_pickles(folder, gguf_file=gguf_file)
        # Files may hold half precision. Training and comparisons need a known one.
        model = model_class.from_pretrained(folder, dtype=torch.float32, **options)
    return in_own_memory(model)


def configuration(
    name: str,
    shape: Mapping[str, Any],
    vocabulary: int | None = None,
    *,
    trust_remote_code: bool = False,
) -> Any:
    """The configuration of a model by name, or the default one of a model type, with changes."""
    config: Any
    made: dict[str, Any] = {}
    with quietly(), _refusing(name), refusing_code(name):
        if name in BACKBONES and not Path(name).is_dir():
            made = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
            made |= {} if vocabulary is None else {"vocab_size": vocabulary}
            config = AutoConfig.for_model(name, **made)
        elif recurrence_of(name) is not None:
            config = RecurrentModelConfig.from_pretrained(model_folder(name)).backbone
        else:
            config = AutoConfig.from_pretrained(
                model_folder(name), trust_remote_code=trust_remote_code
            )
    for key in shape:
        if not hasattr(config, key):
            near = difflib.get_close_matches(key, list(config.to_dict()), n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else "."
            raise ValueError(f"shape: {key!r} is not a setting of {config.model_type} models{hint}")
    if not shape:
        return config
    with _refusing_shape(config, shape):
        if made:
            # From the start, because some settings follow from others (head size from model width).
            return AutoConfig.for_model(name, **{**made, **shape})
        return type(config).from_dict({**config.to_dict(), **shape})


def random_model(
    name: str,
    shape: Mapping[str, Any],
    vocabulary: int,
    recurrence: RecurrenceConfig,
    seed: int,
    *,
    trust_remote_code: bool = False,
) -> RecurrentModel:
    """Random weights for the configuration of a model, or of a model type, with changes."""
    config = configuration(name, shape, vocabulary, trust_remote_code=trust_remote_code)
    torch.manual_seed(seed)
    model = from_configuration(config, shape, trust_remote_code=trust_remote_code)
    return add_recurrence(model, recurrence)


def from_configuration(
    config: Any, shape: Mapping[str, Any], *, trust_remote_code: bool = False, **options: Any
) -> Any:
    """A stock language model with random weights; options: as transformers' from_config takes them."""
    with _refusing_shape(config, shape), refusing_code(config.name_or_path or config.model_type):
        return AutoModelForCausalLM.from_config(
            config, trust_remote_code=trust_remote_code, **options
        )


@contextmanager
def _refusing_shape(config: Any, shape: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except RemoteCodeError:
        raise
    # Every model fails in its own way on a shape that it cannot have.
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".")
        given = ", ".join(f"{key}={value}" for key, value in shape.items())
        raise ValueError(
            f"shape: no {config.model_type} model can be made with {given or 'no changes'} ({reason})."
        ) from error


def in_own_memory(model: Any) -> Any:
    """The model with its weights copied out of the memory-mapped file.

    In the file they begin at any address, and the alignment of a matrix changes the last bit of a
    product. A continued run would then differ from the run that wrote the file.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.clone()
    return model


@contextmanager
def quietly():
    """Hide the progress bar that transformers shows while it loads a model."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


@contextmanager
def _refusing(name: str, kind: str = "language model"):
    """Failures of loading, each as one sentence."""
    try:
        yield
    except (NewerFormatError, RemoteCodeError, PickleError):
        raise
    except SafetensorError as error:
        raise ValueError(
            f"The weights of {name} are truncated or damaged ({error}): copy or save the model again."
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        near = difflib.get_close_matches(name, (PLAIN, RECURRENT), n=1)
        raise ValueError(
            f"The model {name} could not be opened ({reason}): give a folder with a saved {kind}, a "
            "name that the Hugging Face hub knows and can be reached for, or a bundled model "
            f"({PLAIN}, {RECURRENT}){f'; did you mean {near[0]}?' if near else '.'}"
        ) from error
