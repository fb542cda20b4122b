"""How processes share one model: a single process, copies (DDP), or shards (FSDP2).

* A step reads many windows, some of them twice (recompute). Therefore DDP and FSDP wrap not the model
  but everything that a step does with it: one forward and one backward per batch.
* Shards are gathered once per batch, and gradients are reduced as they arrive. Gathering for every
  window would take as many times longer as there are windows.
* A process divides its summed loss by the targets of all processes, so gradients must be summed over
  processes. torch averages them instead, so the loss is multiplied by the number of processes first.
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
    """This process's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """A tensor that may be sharded, gathered on every process."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class CallableModule(nn.Module):
    """A module whose forward calls a function with the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Work) -> Any:
        return work(self.model)


class SingleProcess:
    """One process holds the model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def loss(
        self, task: Any, batch: Any, carried: State | None, count: int
    ) -> tuple[Tensor, State | None]:
        """A batch's loss, and the detached state after it."""

        def work(model: Any) -> tuple[Tensor, State | None]:
            loss, state = task.loss(model, batch, carried, count)
            # Detached also because DDP expects a gradient for every output that has a graph.
            return loss, None if state is None else state.detach()

        loss, state = self.run(work)
        return (0.0 * loss if batch.idle else loss), state

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def accumulating(self) -> AbstractContextManager[Any]:
        """Inside, gradients are not exchanged yet: another batch adds to them."""
        return nullcontext()

    def post_backward(self) -> None:
        """Called after the last backward of a step."""

    def read(self, work: Work) -> Any:
        """Call a function that reads all weights of the model and needs no gradient."""
        return work(self.model)

    def weights(self) -> dict[str, Tensor] | None:
        """The gathered weights; None if the model itself holds them."""
        return None

    def shard_like(self, parameter: Tensor, value: Tensor) -> Tensor:
        """A value of the optimizer for a parameter, sharded as this process holds the parameter."""
        return value

    def run(self, work: Work) -> Any:
        return work(self.model)


class DDP(SingleProcess):
    """Every process holds the whole model (DDP)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        # Not every weight has a gradient in every batch (heads of a reader, embeddings of XLNet).
        self._wrapped = DistributedDataParallel(CallableModule(model), find_unused_parameters=True)

    def backward(self, loss: Tensor) -> None:
        (loss * own_share().of).backward()

    def accumulating(self) -> AbstractContextManager[Any]:
        return self._wrapped.no_sync()

    def run(self, work: Work) -> Any:
        return self._wrapped(work)


class FSDP(SingleProcess):
    """Every process holds a shard of each weight, its gradient and its optimizer state (FSDP2)."""

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module], device: torch.device) -> None:
        super().__init__(model)
        scalars = [name for name, weight in model.named_parameters() if weight.ndim == 0]
        if scalars:
            raise ValueError(
                f"The weight {scalars[0]} is a single number, as recurrence in attention (--rsa) has "
                "them, and cannot be sharded: leave --shard out."
            )
        mesh = init_device_mesh(device.type, (own_share().of,))
        callable_module = CallableModule(model)
        for module in (*layers, callable_module):
            fully_shard(module, mesh=mesh, reshard_after_forward=False)
        self._wrapped = callable_module
        self._parts = [m for m in callable_module.modules() if isinstance(m, FSDPModule)]
        for part in self._parts:
            # A recomputed window runs in the middle of a backward, and needs all weights.
            part.set_reshard_after_backward(False, recurse=False)

    def backward(self, loss: Tensor) -> None:
        (loss * own_share().of).backward()

    def post_backward(self) -> None:
        for part in self._parts:
            part.reshard()

    def read(self, work: Work) -> Any:
        try:
            return self.run(work)
        finally:
            self.post_backward()

    def weights(self) -> dict[str, Tensor] | None:
        """On rank 0; the other processes take part in gathering and keep nothing."""
        gathered: dict[str, Tensor] = {}
        # Tied weights have two names and stay one tensor.
        known: dict[int, Tensor] = {}
        for name, weight in self.model.state_dict(keep_vars=True).items():
            if id(weight) not in known:
                value = full_tensor(weight.detach())
                known[id(weight)] = value.cpu() if is_first() else value.new_empty(0)
            gathered[name] = known[id(weight)]
        return gathered

    def shard_like(self, parameter: Tensor, value: Tensor) -> Tensor:
        if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
            return value
        on_device = value.to(parameter.device)
        return distribute_tensor(on_device, parameter.device_mesh, parameter.placements)

    def run(self, work: Work) -> Any:
        def with_weights(model: Any) -> Any:
            for part in self._parts:
                part.unshard()
            return work(model)

        return self._wrapped(with_weights)


def parallelize(
    model: nn.Module, layers: Sequence[nn.Module], device: torch.device, shard: bool
) -> SingleProcess:
    """The model as the processes of this run hold it; `layers` are gathered one at a time."""
    if own_share().of == 1:
        return SingleProcess(model)
    return FSDP(model, layers, device) if shard else DDP(model)
