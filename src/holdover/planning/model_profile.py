"""Measures a model from its configuration: parameters, products per position, activation memory.

* Parameters are counted on the meta device: tensors with a shape and no memory.
* Activation memory is measured, not estimated: the stock model runs once on fake tensors (shape, dtype
  and storage size, but no data), and the tensors that autograd saves for backward are added up.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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
from .options import Precision

# Window length of the trial run. It is a prime, and the width of no model: a tensor with this dimension
# is an activation, any other a weight.
TRIAL_LENGTH = 331


@dataclass(frozen=True)
class ModelProfile:
    """The sizes that determine the cost of a recurrent language model."""

    parameters: int
    added: int  # parameters that the recurrence adds
    hidden: int  # k
    vocabulary: int  # V
    layers: int  # L
    layer_products: int  # weights in the matrix products that every position passes through
    attention_products: int  # those of one layer's attention
    head_products: int  # weights of the projection to the vocabulary
    map_products: int  # weights of the map between windows
    score_width: int  # heads x head width
    extra_positions: int  # positions that memory tokens add to a window
    rows_read: int  # keys from the state that the insert layers read in addition to the window
    insert_layers: int
    largest_group: int  # weights of the largest group that FSDP gathers at a time


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes per position that autograd keeps for the backward of all layers."""

    eager: float
    compiled: float


def profile_model(
    name: str, shape: Mapping[str, Any], recurrence: RecurrenceConfig
) -> ModelProfile:
    """Profile a model, given by name or type, from its configuration alone."""
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
            f"--model {name}: costs are predicted for causal language models of transformers, such as "
            f"gpt2 or llama, and {config.model_type} is no such model. `holdover backbones` lists the "
            "models to choose from."
        )
    with torch.device("meta"):
        model = add_recurrence(from_configuration(config, shape), recurrence)
    return _profile(model, config, recurrence)


def check_predictable(recurrence: RecurrenceConfig) -> None:
    if recurrence.carry not in ("pooled", "tokens", "none") or recurrence.rsa:
        given = "--rsa" if recurrence.rsa else f"--recurrence {recurrence.carry}"
        raise ValueError(
            f"Costs are predicted for --recurrence pooled, tokens and none, not for {given}."
        )
    if recurrence.recompute == "auto":
        raise ValueError(
            "--recompute auto chooses by the free memory at run time: plan with --recompute none and "
            "with --recompute window; the real cost lies between."
        )


def _profile(model: RecurrentModel, config: Any, recurrence: RecurrenceConfig) -> ModelProfile:
    layers = list(model.hooks.layers)
    head = model.backbone.get_output_embeddings()
    inside = {id(module) for layer in layers for module in layer.modules()}
    counts = model.parameter_counts()
    in_layers = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    # OPT has projections outside its layers, because its embeddings are narrower than the layers.
    outside = [
        module
        for module in model.backbone.modules()
        if id(module) not in inside and module is not head
    ]
    attention = layers[0].get_submodule(model.spec.attention)
    insert_layers = len(model.recurrence.insert_layers())
    heads = config.num_attention_heads
    return ModelProfile(
        parameters=counts["all"],
        added=counts["added"],
        hidden=config.hidden_size,
        vocabulary=head.weight.shape[0],
        layers=len(layers),
        layer_products=_products(*layers) + sum(_weight(module) for module in outside),
        attention_products=_products(attention),
        head_products=head.weight.numel(),
        map_products=_products(model.recurrence),
        score_width=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        extra_positions=model.recurrence.extra_positions,
        rows_read=recurrence.slots if insert_layers else 0,
        insert_layers=insert_layers,
        largest_group=max(max(in_layers), counts["all"] - sum(in_layers)),
    )


def _products(*modules: nn.Module) -> int:
    return sum(_weight(inner) for module in modules for inner in module.modules())


def _weight(module: nn.Module) -> int:
    return module.weight.numel() if isinstance(module, (nn.Linear, Conv1D)) else 0


def activation_bytes(name: str, shape: Mapping[str, Any], precision: Precision) -> ActivationBytes:
    """Bytes that autograd keeps per position, from a trial run on fake tensors (once per model)."""
    return _run_trial(name, json.dumps(shape, sort_keys=True), precision)


@lru_cache
def _run_trial(name: str, changes: str, precision: Precision) -> ActivationBytes:
    """`changes` to the configuration come as JSON, which a cache can hash.

    A compiled step recomputes everything except the inputs and outputs of matrix products and attention,
    so it keeps these, and for each layer the two sums that its norms read.
    """
    shape = json.loads(changes)
    # GPT-Neo keeps its mask as a buffer, which must cover the trial window.
    positions = configuration(name, shape).max_position_embeddings
    shape["max_position_embeddings"] = max(positions, TRIAL_LENGTH)
    config = configuration(name, shape)
    value_bytes = 2 if precision == "bfloat16" else 4
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        # Only fake tensors get an explicit mask: fused causal attention needs none.
        square = tensor.shape[-2:] == (TRIAL_LENGTH, TRIAL_LENGTH)
        if TRIAL_LENGTH in tensor.shape and not square:
            saved.setdefault(tensor.untyped_storage()._cdata, tensor.detach())
        return tensor.detach()

    autocast = torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext()
    with FakeTensorMode(), autocast:
        model = from_configuration(config, shape, dtype=dtype).train()
        for module in model.modules():
            # OPT draws a random number to skip layers, and fake tensors have no values.
            module.training = not hasattr(module, "layerdrop")
        ids = torch.zeros(1, TRIAL_LENGTH, dtype=torch.long)
        with saved_tensors_hooks(keep, lambda tensor: tensor), _Products() as products:
            model.base_model(input_ids=ids, use_cache=False)
    sizes = {key: tensor.untyped_storage().nbytes() for key, tensor in saved.items()}
    in_products = sum(size for key, size in sizes.items() if key in products.storages)
    sums = 2 * config.num_hidden_layers * config.hidden_size * value_bytes
    eager = sum(sizes.values()) / TRIAL_LENGTH
    return ActivationBytes(eager, compiled=min(eager, in_products / TRIAL_LENGTH + sums))


class _Products(TorchDispatchMode):
    """Collects the storages that are inputs or outputs of matrix products and attention."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()
        # References keep the storages alive, so that no later storage gets the same address.
        self._held: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.__name__
        if "mm" in name or "scaled_dot_product" in name:
            outputs = output if isinstance(output, (tuple, list)) else (output,)
            tensors = [value for value in (*args, *outputs) if isinstance(value, Tensor)]
            self.storages |= {tensor.untyped_storage()._cdata for tensor in tensors}
            self._held += tensors
        return output
