"""The optimizer: Adam with one learning rate for pretrained weights and one for added weights."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..ops.rem import RecurrenceEncoding
from ..runs.processes import is_first
from .options import LoopOptions
from .parallel import full_tensor


def build_optimizer(model: Any, options: LoopOptions) -> torch.optim.AdamW:
    """Four groups: base and added weights, each as matrices (with weight decay) and vectors."""
    added = {id(weight) for weight in _added(model)}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        groups.setdefault((id(parameter) in added, parameter.ndim > 1), []).append(parameter)
    assert sum(map(len, groups.values())) == len(trained)
    if not trained:
        raise ValueError(
            "Nothing would be trained: the base is frozen and --recurrence none adds no weights."
        )
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "weight_decay": options.weight_decay if matrices else 0.0,
                "peak": options.added_learning_rate if is_added else options.learning_rate,
            }
            for (is_added, matrices), parameters in sorted(groups.items())
        ],
        lr=options.learning_rate,
        betas=(options.betas[0], options.betas[1]),
        fused=trained[0].is_cuda,
    )


def _added(model: Any) -> list[nn.Parameter]:
    """The weights that were not pretrained."""
    if hasattr(model, "added_parameters"):
        return model.added_parameters()
    # A forecaster is trained as a whole: it has no added weights.
    recurrence = getattr(model, "recurrence", None)
    if recurrence is None:
        return []
    # The few numbers of a recurrence in attention count as added in every model. Adam moves a gate by
    # at most the learning rate in a step, and a gate has a long way to go.
    encodings = [module for module in model.modules() if isinstance(module, RecurrenceEncoding)]
    return [*recurrence.parameters(), *(p for one in encodings for p in one.parameters())]


def rate(step: int, total: int | None, options: LoopOptions, epoch: int = 0) -> float:
    """Share of the peak learning rate at a step (from 1) of an epoch (from 0)."""
    warm = min(1.0, step / options.warm_up) if options.warm_up else 1.0
    if options.schedule == "constant":
        return warm
    if options.schedule == "halving":
        # As in Informer's code: the first two epochs at the full rate.
        return warm * 0.5 ** max(epoch - 1, 0)
    assert total is not None
    rest = max(total - options.warm_up, 1)
    done = min(max(step - options.warm_up, 0) / rest, 1.0)
    fall = 1 - done if options.schedule == "linear" else 0.5 + 0.5 * math.cos(math.pi * done)
    return warm * fall


def set_rate(optimizer: Any, share: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share


def named_state(model: nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    """The optimizer's tensors under the names of their parameters; only rank 0 keeps them."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensor = full_tensor(torch.as_tensor(value))
            if is_first():
                # A gathered tensor leaves the device at once.
                tensors[f"{name}/{key}"] = tensor if tensor is value else tensor.cpu()
    return tensors


def restore_state(
    model: nn.Module,
    optimizer: Any,
    tensors: dict[str, torch.Tensor],
    shard_like: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """shard_like: shards a tensor of the optimizer as its parameter is sharded."""
    by_name: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, part = key.rpartition("/")
        by_name.setdefault(name, {})[part] = tensor
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    current = optimizer.state_dict()
    state, number = {}, 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if names[id(parameter)] in by_name:
                state[number] = {
                    part: shard_like(parameter, tensor)
                    for part, tensor in by_name[names[id(parameter)]].items()
                }
            number += 1
    optimizer.load_state_dict({"state": state, "param_groups": current["param_groups"]})
