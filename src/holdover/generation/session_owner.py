"""Whom a session belongs to: its model, and a tokenizer whose ids mean what they meant."""

import hashlib
import json
from typing import Any

import torch

from ..recurrent.model import RecurrentModel
from ..state import differing_keys
from ..tokenization.encoders import HFEncoder
from .session_file import short
from .session_position import SavedSession


def check_fits(saved: SavedSession, model: RecurrentModel, encoder: Any, path: str) -> None:
    """Refuse the session of another model or tokenizer, and a state that would not fit."""
    owner = model.owner()
    # A session always has a fingerprint of weights; one without it was changed by hand.
    weights = () if saved.owner.get("weights") == owner["weights"] else ("weights",)
    differing = [
        f"{key} is {short(saved.owner.get(key))} in the session and {owner.get(key)!r} in the model"
        for key in dict.fromkeys((*differing_keys(saved.owner, owner), *weights))
    ]
    if differing:
        raise ValueError(
            f"{path} is a session of another model: {'; '.join(differing)}; give the model that it was "
            "made with, or read the text into a new session."
        )
    if saved.tokenizer != fingerprint(encoder):
        raise ValueError(
            f"{path} was made with another tokenizer than {encoder.name} (their fingerprints differ): "
            "give the one that it was made with."
        )
    place, damaged = saved.place, f"{path} is damaged or was tampered with: "
    unread = () if place.unread is None else (place.unread,)
    tail = None if place.state is None else place.state.tail
    ids = [*place.open, *unread, *([] if tail is None else tail[0].tolist())]
    if max(ids, default=0) >= model.vocabulary:
        raise ValueError(
            f"{damaged}it holds the id {max(ids)}, and the model has the ids 0 to "
            f"{model.vocabulary - 1}; read the text into a new session."
        )
    if place.state is None:
        return
    with torch.no_grad():
        probe = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        expected = model(probe, return_logits=False).state.tensors
    forms = [
        {name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()}
        for tensors in (place.state.tensors, expected)
    ]
    if forms[0] != forms[1]:
        raise ValueError(
            f"{path} does not fit the model: its state has {_told(forms[0])} where "
            f"{_told(forms[1])} was expected; give the model in the precision that the session "
            "was made with."
        )


def fingerprint(encoder: Any) -> str:
    """Of what ids mean. How a tokenizer cuts and pads batches is no part of that, and changes."""
    if not isinstance(encoder, HFEncoder):
        return encoder.fingerprint()
    description = json.loads(encoder.tokenizer.backend_tokenizer.to_str())
    description |= {"truncation": None, "padding": None}
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def _told(form: dict[str, tuple[tuple[int, ...], str]]) -> str:
    parts = [f"{name} {list(shape)} {dtype}" for name, (shape, dtype) in sorted(form.items())]
    return ", ".join(parts) or "nothing"
