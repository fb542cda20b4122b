"""A reader in a folder.

config.json, model.safetensors            the encoder with its state: RecurrentModel.from_pretrained
tokenizer.json, ...                       its tokenizer
holdover_reader.json, .safetensors        the heads
holdover_run.json                         the run that trained it
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..backbones.registry import spec_of
from ..backbones.safe_loading import PickleError
from ..config import RecurrenceConfig
from ..recurrent.attach import add_recurrence
from ..recurrent.model import RecurrentModel
from ..runs.models import (
    RUN,
    in_own_memory,
    model_folder,
    open_stock,
    quietly,
    read_run,
    recurrence_of,
)
from ..storage import READER, NewerFormatError, check_content, with_version, write_atomically
from ..tokenization.encoders import encoder_of
from .pairs import PairTokenizer
from .question import KINDS
from .reader import Reader

ABOUT = READER.file
HEADS = "holdover_reader.safetensors"
# As 0.1.0 wrote it and expects it. The version that counts is the file's format_version.
FORMAT = "holdover.reader.v1"


@dataclass(frozen=True)
class SavedReader:
    reader: Reader
    tokenizer: PairTokenizer
    run: dict[str, Any] | None  # the run that trained it


def build_reader(
    name: str,
    recurrence: RecurrenceConfig,
    *,
    shrink: bool = False,
    trust_remote_code: bool = False,
) -> Reader:
    """A pretrained encoder with new heads and a new state, drawn from torch's random numbers.

    shrink: shorten the windows to the positions that the encoder has.
    """
    if recurrence_of(name) is not None:
        raise ValueError(
            f"{name} has a recurrence already: give a pretrained encoder without one, or continue a run "
            "with --resume."
        )
    base = open_stock(name, head=False, trust_remote_code=trust_remote_code)
    limit = spec_of(base.config.model_type).positions(base.config)
    if shrink and limit is not None:
        # Memory tokens take positions too, before and after the window's tokens.
        added = 2 * recurrence.slots if recurrence.carry == "tokens" else 0
        recurrence = recurrence.replace(window=min(recurrence.window, limit - added))
    return Reader(add_recurrence(base, recurrence))


def fitting(recurrence: RecurrenceConfig) -> RecurrenceConfig:
    """The settings as those of any model; a reader's have other defaults (`ReaderRecurrence`)."""
    return RecurrenceConfig.from_dict(recurrence.to_dict())


def save_reader(
    folder: Path, reader: Reader, encoder: Any, weights: dict[str, Tensor] | None = None
) -> None:
    """weights: the reader's gathered weights, if the processes hold shards of them."""
    weights = reader.state_dict() if weights is None else weights
    with quietly():
        reader.encoder.save_pretrained(folder, state_dict=_below("encoder.", weights))
    encoder.save(folder)
    heads = {name: t.detach().cpu().contiguous() for name, t in _below("heads.", weights).items()}
    save_file(heads, folder / HEADS)
    about = with_version(READER, {"format": FORMAT, "kinds": list(KINDS)})
    write_atomically(folder / ABOUT, (json.dumps(about, indent=2) + "\n").encode())


def _below(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in weights.items() if k.startswith(prefix)}


def open_reader(name: str | Path, *, trust_remote_code: bool = False) -> SavedReader:
    """A saved reader, or the best checkpoint of a run, in evaluation mode."""
    folder = Path(model_folder(str(name)))
    if not (folder / ABOUT).is_file():
        raise ValueError(
            f"{name} is not a reader (it has no {ABOUT}): give a folder that holdover qa train wrote."
        )
    try:
        content = json.loads((folder / ABOUT).read_text())
        about = check_content(READER, content, folder / ABOUT, ("format", "kinds"))
        if (about["format"], about["kinds"]) != (FORMAT, list(KINDS)):
            raise ValueError(f"its {ABOUT} has another format")
        with quietly():
            encoder = RecurrentModel.from_pretrained(folder, dtype=torch.float32)
        reader = Reader(encoder)
        reader.heads.load_state_dict(load_file(folder / HEADS))
    except (NewerFormatError, PickleError):
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"The reader in {name} is truncated or damaged ({reason}): copy it or train it again."
        ) from error
    run = read_run(folder / RUN) if (folder / RUN).is_file() else None
    tokenizer = PairTokenizer(encoder_of(str(folder), trust_remote_code=trust_remote_code))
    return SavedReader(in_own_memory(reader).eval(), tokenizer, run)
