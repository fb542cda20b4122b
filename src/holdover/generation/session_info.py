"""What a session file says of itself, and by which names its model and tokenizer are found again."""

import os
from typing import Any

from ..tokenization.byte_encoder import SYMBOLS
from .session_file import FORMAT, VERSION
from .session_position import SavedSession

LEAK = (
    "A saved state can leak the text it was made from: treat this file as you would treat the text."
)


def describe(saved: SavedSession) -> dict[str, Any]:
    """What a session file holds, for whoever has nothing else."""
    place, owner = saved.place, saved.owner
    state = {} if place.state is None else place.state.tensors
    return {
        "format": f"{FORMAT} {VERSION}",
        "size": saved.size,
        "model": {
            "name": saved.model_name,
            "type": owner.get("model_type"),
            "weights": owner.get("weights"),
            "carry": owner.get("carry"),
            "window": owner["window"],
            "overlap": owner["overlap"],
        },
        "tokenizer": {"name": saved.tokenizer_name, "fingerprint": saved.tokenizer[:16]},
        "position": place.position,
        "windows": saved.windows,
        "state": {
            name: f"{'x'.join(map(str, tensor.shape))} {str(tensor.dtype).removeprefix('torch.')}"
            for name, tensor in state.items()
        },
        "open": {
            "tokens": len(place.open),
            "not_read_yet": int(place.unread is not None),
            "bytes_of_a_character": len(place.unfinished),
        },
        "sampling": {
            "temperature": place.sampling.temperature,
            "top_k": place.sampling.top_k,
            "top_p": place.sampling.top_p,
        },
        "random": f"{place.random.numel()} bytes of torch's generator",
        "files": [vars(file) for file in place.files],
        "warning": LEAK,
    }


def lasting_name(name: str | None) -> str | None:
    """A folder by its whole path, to be found from anywhere; other names are what they are."""
    # As for the encoders: words like bytes are tokenizers, whatever folders there are.
    if name is None or name in SYMBOLS or not os.path.isdir(name):
        return name
    return os.path.abspath(name)
