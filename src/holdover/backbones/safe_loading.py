"""Loading files that other people wrote: no pickle, and no Python code unless the user asks for it.

* transformers is always given trust_remote_code and use_safetensors, because its defaults ask the
  person at the keyboard and read pickles.
* Some pickles get past use_safetensors: an adapter's adapter_model.bin, a file that config.json names as
  "transformers_weights", a shard that an index of safetensors lists. They are refused here.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# How transformers begins what it says about a folder with code.
ASKS_FOR_TRUST = "trust_remote_code=True"


class RemoteCodeError(ValueError):
    """A model or tokenizer needs Python code that comes with it."""


class PickleError(ValueError):
    """Weights are there only as a pickle."""


def loading_options(trust_remote_code: bool) -> dict[str, Any]:
    """What every from_pretrained of a model is given."""
    return {"trust_remote_code": trust_remote_code, "use_safetensors": True}


@contextmanager
def refusing_code(name: object, advice: str = "") -> Iterator[None]:
    """Say in one sentence that a model comes with code; `advice` ends it."""
    advice = advice or (
        "read that code and, if you trust it, give --trust-remote-code (in Python: "
        "trust_remote_code=True)"
    )
    try:
        yield
    except ValueError as error:
        if ASKS_FOR_TRUST not in str(error) and "custom code" not in str(error):
            raise
        raise RemoteCodeError(
            f"{name} needs Python code that comes with it, and holdover did not execute it: {advice}."
        ) from error


def refuse_pickles(name: Any, *, gguf_file: str | None = None, **hub: Any) -> None:
    """Refuse a folder or repository from which transformers would read a pickle."""
    adapter = None
    try:
        config = _json(find_file(name, "config.json", reach=True, **hub))
    except OSError:
        # Every request to a hub that cannot be reached takes half a minute: one more, then give up.
        if (adapter := find_file(name, ADAPTER_CONFIG, **hub)) is None:
            raise
        config = {}
    if gguf_file is None:
        _refuse_pickled_weights(name, config, hub)
    adapter = adapter or find_file(name, ADAPTER_CONFIG, **hub)
    if adapter is None:
        return
    if find_file(name, ADAPTER_WEIGHTS, **hub) is None:
        raise _pickle(name, "adapter_model.bin")
    base = _json(adapter).get("base_model_name_or_path")
    if base and not config:
        _refuse_pickled_weights(base, _json(find_file(base, "config.json")), {})


def _refuse_pickled_weights(name: Any, config: dict[str, Any], hub: dict[str, Any]) -> None:
    explicit = str(config.get("transformers_weights") or WEIGHTS)
    if not explicit.endswith((".safetensors", ".safetensors.index.json")):
        raise _pickle(name, explicit)
    index = find_file(name, explicit if explicit.endswith(".json") else INDEX, **hub)
    shards = _json(index).get("weight_map")
    for shard in shards.values() if isinstance(shards, dict) else ():
        if not str(shard).endswith(".safetensors"):
            raise _pickle(name, shard)
    if Path(name).is_dir() and not list(Path(name).glob("*.safetensors*")):
        for file in PICKLES:
            if (Path(name) / file).exists():
                raise _pickle(name, file)


def find_file(name: Any, file: str, *, reach: bool = False, **hub: Any) -> Path | None:
    """A file of a folder or of a hub repository; None if it has no such file.

    reach: raise OSError if the hub cannot be reached. Without it that is None too.
    """
    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    from transformers.utils import cached_file

    hub = {key: hub[key] for key in ("revision", "token", "cache_dir") if key in hub}
    try:
        path = cached_file(
            str(name),
            file,
            _raise_exceptions_for_missing_entries=reach,
            _raise_exceptions_for_connection_errors=reach,
            _raise_exceptions_for_gated_repo=False,
            **hub,
        )
    except OSError as error:
        cause = error.__cause__
        if isinstance(cause, EntryNotFoundError) and not isinstance(cause, LocalEntryNotFoundError):
            return None
        raise
    return None if path is None else Path(path)


def _json(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text())
    # transformers reports a damaged file in its own words.
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _pickle(name: object, file: object) -> PickleError:
    return PickleError(
        f"{name} has its weights in {file}, a pickle, which can execute code when it is read: holdover "
        "reads only safetensors and GGUF files; if you trust the file, convert it with transformers, "
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)."
    )
