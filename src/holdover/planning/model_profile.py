"""A model without its weights: how many there are, what a position costs, what a gradient keeps of it.

* Parameters are counted on the meta device, which has shapes and no memory.
* What autograd keeps of a window is not estimated but seen: the stock model runs on fake tensors, which
  have shapes, types and storages that hold nothing, and what is saved for its backward is added up.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.pytorch_utils import Conv1D

from ..backbones.registry import BACKBONES
from ..backbones.safe_loading import RemoteCodeError
from ..config import RecurrenceConfig
from ..models.registry import MODELS
from ..recurrent.attach import add_recurrence
from ..recurrent.model import RecurrentModel
from ..runs.models import configuration, from_configuration

# Weights and products: single, bfloat16 products of float32 weights, all bfloat16.
Precision = Literal["float32", "autocast", "bfloat16"]
# Positions of the window that is tried: a prime that is no width of a model, so that a tensor with such
# a dimension belongs to positions, and one without to weights.
TRIED = 331


@dataclass(frozen=True)
class ModelProfile:
    """What the costs of a recurrent language model are computed from."""

    parameters: int
    added: int  # of them, by the recurrence
    hidden: int  # k
    vocabulary: int  # V
    layers: int  # L
    layer_products: int  # weights of the products that every position goes through
    attention_products: int  # of them, in the attention of one layer
    head_products: int  # of the projection to the vocabulary
    map_products: int  # of the map between windows
    score_width: int  # heads x width of a head
    extra_positions: int  # what memory tokens add to a window
    rows_read: int  # keys that the insert layers read beside the window
    insert_layers: int
    largest_group: int  # weights of the largest part that shards put together at a time


@dataclass(frozen=True)
class Kept:
    """Bytes a position that autograd keeps for the backward of all layers."""

    eager: float
    compiled: float


def profile_model(
    name: str, shape: Mapping[str, Any], recurrence: RecurrenceConfig
) -> ModelProfile:
    """Of a model by name or type; nothing but its configuration is read."""
    check_predictable(recurrence)
    try:
        config = configuration(name, shape)
    except RemoteCodeError as error:
        raise ValueError(
            f"{name} needs Python code that comes with it, and plan executes none: give --model a type "
            "that holdover runs (holdover backbones lists them), with --shape."
        ) from error
    row = BACKBONES.get(config.model_type)
    if row is None or not row.causal or config.model_type in MODELS:
        raise ValueError(
            f"{config.model_type} is no causal language model of transformers that holdover runs: costs "
            "are predicted for gpt2, llama and the like (holdover backbones lists them)."
        )
    with torch.device("meta"):
        model = add_recurrence(from_configuration(config, shape), recurrence)
    return _outlined(model, config, recurrence)


def check_predictable(recurrence: RecurrenceConfig) -> None:
    if recurrence.carry not in ("pooled", "tokens", "none") or recurrence.rsa:
        what = "rsa" if recurrence.rsa else f"recurrence {recurrence.carry}"
        raise ValueError(
            f"Costs are predicted for recurrence pooled, tokens and none, not for {what}."
        )
    if recurrence.recompute == "auto":
        raise ValueError(
            "recompute auto decides by the memory that is free: ask for none and for window, what it "
            "does lies between them."
        )


def _outlined(model: RecurrentModel, config: Any, recurrence: RecurrenceConfig) -> ModelProfile:
    layers = list(model.hooks.layers)
    head = model.backbone.get_output_embeddings()
    inside = {id(module) for layer in layers for module in layer.modules()}
    counts = model.parameter_counts()
    in_layers = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    # Projections of embeddings that are narrower than the layers (OPT) stand beside the layers.
    beside = [
        module
        for module in model.backbone.modules()
        if id(module) not in inside and module is not head
    ]
    attention = layers[0].get_submodule(model.spec.attention)
    reads = model.recurrence.enters_at_insert_layer
    insert = len(layers) if recurrence.insert_layer == "all" else 1
    heads = config.num_attention_heads
    return ModelProfile(
        parameters=counts["all"],
        added=counts["added"],
        hidden=config.hidden_size,
        vocabulary=head.weight.shape[0],
        layers=len(layers),
        layer_products=_products(*layers) + sum(_weight(module) for module in beside),
        attention_products=_products(attention),
        head_products=head.weight.numel(),
        map_products=_products(model.recurrence),
        score_width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        extra_positions=model.recurrence.extra_positions,
        rows_read=recurrence.slots if reads else 0,
        insert_layers=insert if reads else 0,
        largest_group=max(max(in_layers), counts["all"] - sum(in_layers)),
    )


def _products(*modules: nn.Module) -> int:
    return sum(_weight(inner) for module in modules for inner in module.modules())


def _weight(module: nn.Module) -> int:
    return module.weight.numel() if isinstance(module, (nn.Linear, Conv1D)) else 0


def kept_bytes(name: str, shape: Mapping[str, Any], precision: Precision) -> Kept:
    """What autograd keeps of one position, seen on fake tensors; of one model it is seen once."""
    return _seen(name, json.dumps(shape, sort_keys=True), precision)


@lru_cache
def _seen(name: str, changes: str, precision: Precision) -> Kept:
    """With the changes of the configuration as JSON.

    Compiled steps compute again what no product needs: there it is the tensors that go into or come out
    of products and attention, and the two sums a layer that its norms read.
    """
    shape = json.loads(changes)
    # Masks of models that have them as buffers (GPT-Neo) are as large as their positions.
    known = configuration(name, shape).max_position_embeddings
    shape["max_position_embeddings"] = max(known, TRIED)
    config = configuration(name, shape)
    wide = 2 if precision == "bfloat16" else 4
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        # Masks are made for fake tensors alone: attention that reads left to right needs none.
        if TRIED in tensor.shape and tensor.shape[-2:] != (TRIED, TRIED):
            saved.setdefault(tensor.untyped_storage()._cdata, tensor.detach())
        return tensor.detach()

    half = torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext()
    with FakeTensorMode(), half:
        model = from_configuration(config, shape, dtype=dtype).train()
        for module in model.modules():
            # Whether it leaves layers out is drawn (OPT), and fake tensors hold no numbers.
            module.training = not hasattr(module, "layerdrop")
        ids = torch.zeros(1, TRIED, dtype=torch.long)
        with saved_tensors_hooks(keep, lambda tensor: tensor), _Products() as products:
            model.base_model(input_ids=ids, use_cache=False)
    sizes = {key: tensor.untyped_storage().nbytes() for key, tensor in saved.items()}
    in_products = sum(size for key, size in sizes.items() if key in products.storages)
    sums = 2 * config.num_hidden_layers * config.hidden_size * wide
    eager = sum(sizes.values()) / TRIED
    return Kept(eager, compiled=min(eager, in_products / TRIED + sums))


class _Products(TorchDispatchMode):
    """Which storages go into or come out of products."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()
        # Held, so that no other storage gets the same name.
        self._held: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        name = func.__name__
        if "mm" in name or "scaled_dot_product" in name:
            came = found if isinstance(found, (tuple, list)) else (found,)
            tensors = [value for value in (*args, *came) if isinstance(value, Tensor)]
            self.storages |= {tensor.untyped_storage()._cdata for tensor in tensors}
            self._held += tensors
        return found
