"""Carried keys and values through transformers' own cache: no hook, no knowledge of an architecture.

The model is called with a cache that holds the carried keys and values before the tokens, with the
tokens' positions and with a mask over both; the window's own keys and values are taken out of it.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicLayer

from ..carries.base import CarryInputs, KeysValues


def cache_with(inputs: CarryInputs, layer_class: type[DynamicLayer] = DynamicLayer) -> Cache:
    """A growing cache that holds the carried keys and values; a sliding layer would drop them."""
    cache = Cache(layer_class_to_replicate=layer_class)
    for layer, (keys, values) in enumerate(inputs.keys_values or ()):
        cache.update(keys, values, layer)
    return cache


def carried_places(inputs: CarryInputs) -> int:
    """P: how many places of the cache are carried ones."""
    return inputs.keys_values[0][0].shape[2] if inputs.keys_values else 0


def cache_arguments(inputs: CarryInputs, input_ids: Tensor, past: int = 0) -> dict[str, Tensor]:
    """Positions [B, T] and the mask [B, P + past + T]; past: tokens of this window read before."""
    batch, length = input_ids.shape
    device = input_ids.device
    positions = torch.arange(past, past + length, device=device).expand(batch, -1)
    if inputs.position_offset is not None:
        positions = positions + inputs.position_offset[:, None]
    places = carried_places(inputs)
    mask = torch.ones(batch, places + past + length, dtype=torch.long, device=device)
    if places and inputs.filled is not None:
        place = torch.arange(places, device=device)
        mask[:, :places] = (place >= places - inputs.filled[:, None]).long()
    if places and inputs.visible is not None:
        mask[:, :places] *= inputs.visible[:, None].long()
    return {"position_ids": positions, "attention_mask": mask}


def window_keys_values(cache: Any, places: int) -> KeysValues:
    """L x ([B, heads, T, d], same): the keys and values of the window's own tokens."""
    return [
        (layer.keys[:, :, places:], layer.values[:, :, places:])
        for layer in cache.layers
        if layer.keys is not None
    ]
