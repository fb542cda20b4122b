"""A forecaster in a folder: its weights, and the recipe for reading a file and forecasting in its units.

config.json, model.safetensors    the model, in Hugging Face form
holdover_series.json              columns, scaler, frequency, lengths
holdover_run.json                 how it was trained
"""

import difflib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..backbones.safe_loading import PickleError, loading_options, refuse_pickles
from ..runs.models import RUN, in_own_memory, model_folder, quietly, read_run
from ..storage import FORECASTER, NewerFormatError, check_content, with_version, write_atomically
from .data.recipe import Recipe
from .models.base import ForecasterConfig
from .models.registry import FORECASTERS

RECIPE = FORECASTER.file
RECIPE_FIELDS = ("inputs", "outputs", "past", "ahead", "frequency", "scaler")
# Sizes that the series and its windows determine.
FROM_DATA = frozenset(
    {"enc_in", "dec_in", "c_out", "seq_len", "label_len", "pred_len", "time_features"}
)


@dataclass(frozen=True)
class SavedForecaster:
    model: Any
    kind: str  # its name among FORECASTERS
    recipe: Recipe
    run: dict[str, Any] | None  # the record of its training


def build_forecaster(
    kind: str, recipe: Recipe, shape: dict[str, Any] | None = None, label_len: int | None = None
) -> Any:
    """A forecaster with new random weights, in the sizes of a recipe."""
    shape = shape or {}
    model_class: Any = FORECASTERS[kind]
    config_class = model_class.config_class
    for key in shape:
        if key in FROM_DATA:
            raise ValueError(
                f"shape: {key} is determined by --data, --past, --ahead and --label-len: leave it out."
            )
        known = _own_settings(config_class)
        if key not in known:
            near = difflib.get_close_matches(key, known, n=3) or known
            hint = f"did you mean {', '.join(near)}?" if near else "it has no settings."
            raise ValueError(f"shape: {key!r} is not a setting of {kind}; {hint}")
    sizes: dict[str, Any] = {
        "enc_in": len(recipe.inputs),
        "dec_in": len(recipe.inputs),
        "c_out": len(recipe.outputs),
        "seq_len": recipe.past,
        "label_len": recipe.past // 2 if label_len is None else label_len,
        "pred_len": recipe.ahead,
        "time_features": recipe.marks,
    }
    if kind == "seasonal":
        sizes["period"] = recipe.frequency.season
    try:
        return model_class(config_class(**{**sizes, **shape}))
    # transformers raises its own kinds of errors for values of a wrong type.
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"A {kind} cannot have this shape: {reason}.") from error


def _own_settings(config_class: Any) -> list[str]:
    """Settings of this kind of forecaster that not all kinds have."""
    shared = {field.name for field in fields(ForecasterConfig)}
    return sorted(field.name for field in fields(config_class) if field.name not in shared)


def is_trained(kind: str) -> bool:
    """Whether this kind of forecaster has weights to train."""
    return kind not in ("repeat", "seasonal")


def save_forecaster(folder: Path, model: Any, recipe: Recipe) -> None:
    with quietly():
        model.save_pretrained(folder)
    content = json.dumps(with_version(FORECASTER, recipe.to_json()), indent=2)
    write_atomically(folder / RECIPE, f"{content}\n".encode())


def open_forecaster(name: str | Path) -> SavedForecaster:
    """A saved forecaster, or the best checkpoint of a run, in evaluation mode."""
    folder = Path(model_folder(str(name)))
    path = folder / RECIPE
    if not path.is_file():
        raise ValueError(
            f"{name} is not a forecaster (it has no {RECIPE}): give a folder that holdover forecast "
            "train wrote."
        )
    try:
        content = json.loads(path.read_text())
        recipe = Recipe.from_json(check_content(FORECASTER, content, path, RECIPE_FIELDS))
        kinds = {cls.config_class.model_type: kind for kind, cls in FORECASTERS.items()}
        kind = kinds[json.loads((folder / "config.json").read_text())["model_type"]]
        model_class: Any = FORECASTERS[kind]
        with quietly():
            refuse_pickles(folder)
            options = loading_options(trust_remote_code=False)
            model = in_own_memory(model_class.from_pretrained(folder, **options))
    except (NewerFormatError, PickleError):
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"The forecaster in {name} is truncated or damaged ({reason}): copy it or train it again."
        ) from error
    run = read_run(folder / RUN) if (folder / RUN).is_file() else None
    return SavedForecaster(model.eval(), kind, recipe, run)
