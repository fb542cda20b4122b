"""Which model a state belongs to."""

import hashlib
from dataclasses import replace
from typing import Any

import torch

from ..config import RecurrenceConfig
from ..state import State

# Values of each weight that enter the fingerprint of a model.
SAMPLE = 65536


class Fingerprint:
    """A short hash of a model's weights, computed again when a weight changed."""

    def __init__(self) -> None:
        self._cached: tuple[Any, str] | None = None

    def of(self, model: Any) -> str:
        """Hash of the added weights and a sample of the base's, rounded so that bfloat16 and float32
        agree."""
        sample = [model.get_input_embeddings().weight, next(model.hooks.layers[-1].parameters())]
        parameters = [*model.recurrence.parameters(), *sample]
        version = tuple((p.data_ptr(), p._version) for p in parameters)
        cached = self._cached
        if cached is None or cached[0] != version:
            digest = hashlib.sha256()
            for parameter in parameters:
                rounded = (
                    parameter.detach().flatten()[:SAMPLE].to(torch.bfloat16).cpu().contiguous()
                )
                digest.update(rounded.view(torch.int16).numpy().tobytes())
            cached = self._cached = (version, digest.hexdigest()[:16])
        return cached[1]


def state_owner(model: Any, settings: RecurrenceConfig) -> dict[str, Any]:
    """The signature that a state of this model carries; weights in training have no fingerprint."""
    config = model.backbone.config
    return {
        "model_type": config.model_type,
        "hidden_size": config.hidden_size,
        "layers": len(model.hooks.layers),
        "vocab_size": config.vocab_size,
        **settings.state_fields(),
        "weights": None if model.training else model._fingerprint.of(model),
    }


def adopted(model: Any, state: State) -> State:
    """The state as one of this model's, if its shapes fit."""
    # A reading may have other settings than the model: its own state shows the shapes.
    with torch.no_grad():
        probe = torch.zeros(1, 1, dtype=torch.long, device=state.device)
        expected = model(probe, return_logits=False).state.tensors
    for name, tensor in expected.items():
        shape = tuple(tensor.shape[1:])
        found = state.tensors.get(name)
        if found is None or tuple(found.shape[1:]) != shape:
            given = None if found is None else tuple(found.shape[1:])
            raise ValueError(
                f"This state cannot be adopted: {name} has shape {given} a row in it and {shape} in "
                "this model."
            )
    return replace(state, owner=model.owner())
