"""How the processes of a run hold one model: alone, as copies (DDP), or in shards (FSDP2).

* A step goes through many windows, some of them twice (recompute). So what is wrapped is not the model
  but all that a step does with it: one forward and one backward a batch.
* Shards are put together once a batch, and gradients are dealt out as they come: a gathering for every
  window would take as many times longer as there are windows.
* A process divides its summed loss by what all processes predict, so gradients are to be summed over
  processes; torch takes their mean, and the loss is multiplied beforehand.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from ..runs.processes import is_first, own_share
from ..state import State

Work = Callable[[Any], Any]


def local_part(tensor: Tensor) -> Tensor:
    """Of a tensor that lies on several processes, what lies here."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor that lies on several processes, put together on each of them."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class CallableModule(nn.Module):
    """A module whose forward is whatever is to be done with the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Work) -> Any:
        return work(self.model)


class SingleProcess:
    """One process."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(
        self, task: Any, batch: Any, carried: State | None, count: int
    ) -> tuple[Tensor, State | None]:
        """A batch's loss, and the state behind it without its history."""

        def work(model: Any) -> tuple[Tensor, State | None]:
            loss, behind = task.loss(model, batch, carried, count)
            # Also because DDP takes every output that has a history for one that is gone back from.
            return loss, None if behind is None else behind.detach()

        loss, behind = self._do(work)
        return (0.0 * loss if batch.idle else loss), behind

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def accumulating(self) -> AbstractContextManager[Any]:
        """Inside, gradients are not yet exchanged: another batch adds to them."""
        return nullcontext()

    def post_backward(self) -> None:
        """Behind the last backward of a step."""

    def read(self, work: Work) -> Any:
        """Something that asks the model and needs no gradient, with the whole model at hand."""
        return work(self.model)

    def weights(self) -> dict[str, Tensor] | None:
        """All weights where the model itself does not have them."""
        return None

    def as_held(self, parameter: Tensor, value: Tensor) -> Tensor:
        """A value that belongs to a parameter (of the optimiser) as this process is to hold it."""
        return value

    def _do(self, work: Work) -> Any:
        return work(self.model)


class DDP(SingleProcess):
    """Every process has the whole model (DDP)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        # Not every weight has a gradient in every batch (the heads of a reader, embeddings of XLNet).
        self._wrapped = DistributedDataParallel(CallableModule(model), find_unused_parameters=True)

    def backward(self, loss: Tensor) -> None:
        (loss * own_share().of).backward()

    def accumulating(self) -> AbstractContextManager[Any]:
        return self._wrapped.no_sync()

    def _do(self, work: Work) -> Any:
        return self._wrapped(work)


class FSDP(SingleProcess):
    """Every process has its part of each weight, its gradient and the optimiser's numbers (FSDP2)."""

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module], device: torch.device) -> None:
        super().__init__(model)
        single = [name for name, weight in model.named_parameters() if weight.ndim == 0]
        if single:
            raise ValueError(
                f"The weight {single[0]} is a single number, as recurrence in attention (rsa) has them, "
                "and cannot be held in parts: leave --shard out."
            )
        mesh = init_device_mesh(device.type, (own_share().of,))
        doing = CallableModule(model)
        for module in (*layers, doing):
            fully_shard(module, mesh=mesh, reshard_after_forward=False)
        self._wrapped = doing
        self._parts = [module for module in doing.modules() if isinstance(module, FSDPModule)]
        for part in self._parts:
            # A window that is computed again runs in the middle of a backward, and finds all weights.
            part.set_reshard_after_backward(False, recurse=False)

    def backward(self, loss: Tensor) -> None:
        (loss * own_share().of).backward()

    def post_backward(self) -> None:
        for part in self._parts:
            part.reshard()

    def read(self, work: Work) -> Any:
        try:
            return self._do(work)
        finally:
            self.post_backward()

    def weights(self) -> dict[str, Tensor] | None:
        """On the first process; the others take part and keep nothing."""
        found: dict[str, Tensor] = {}
        # Tied weights have two names and stay one.
        known: dict[int, Tensor] = {}
        for name, weight in self.model.state_dict(keep_vars=True).items():
            if id(weight) not in known:
                value = whole(weight.detach())
                known[id(weight)] = value.cpu() if is_first() else value.new_empty(0)
            found[name] = known[id(weight)]
        return found

    def as_held(self, parameter: Tensor, value: Tensor) -> Tensor:
        if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value
        on_device = value.to(parameter.device)
        return distribute_tensor(on_device, parameter.device_mesh, parameter.placements)

    def _do(self, work: Work) -> Any:
        def with_weights(model: Any) -> Any:
            for part in self._parts:
                part.unshard()
            return work(model)

        return self._wrapped(with_weights)


def hold(
    model: nn.Module, layers: Sequence[nn.Module], device: torch.device, shard: bool
) -> SingleProcess:
    """A model as the processes of this run hold it; layers: what is put together at a time."""
    if own_share().of == 1:
        return SingleProcess(model)
    return FSDP(model, layers, device) if shard else DDP(model)
