"""A step recorded once and replayed: a CUDA graph of its forward and backward.

A step of a small model is hundreds of small kernels. They take a GPU a few milliseconds, and Python
several times as long to start one by one. Replayed, they are the same kernels on the same memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones.cuda_graphs import no_value_checks
from ..evaluation.cost import uncounted_memory
from .compile_checks import CompileMismatch, distances, gradients_of, untouched, wrong_gradients


def check_replay(options: Any, device: torch.device, processes: int) -> None:
    """Refuse to replay what cannot be recorded.

    Gradients of several batches would be added up in memory that a replay writes over; those of several
    processes are added up by hooks, which a replay does not call; and a window that is computed again
    asks for the state of random numbers, which is not to be had while recording.
    """
    for name, found, needed in (
        ("device", device.type, "cuda"),
        ("accumulate", options.accumulate, 1),
        ("processes", processes, 1),
        ("recompute", options.recurrence.recompute, "none"),
    ):
        if options.replay and found != needed:
            raise ValueError(
                f"replay does not go with {name}={found}: give {name}={needed}, or leave --replay out."
            )


def check_replayed(
    model: Any, replayed: Callable[[], Tensor], written: Callable[[], Tensor]
) -> None:
    """Compare the gradients of a recorded loss, replayed, with those as it was written.

    Written and read twice they differ too, where kernels add up in the order in which threads arrive:
    as rounding, that much is no error of the record.
    """
    with untouched(model), uncounted_memory():
        found, expected, again = (
            gradients_of(model.train(), loss) for loss in (replayed, written, written)
        )
    for wrong in wrong_gradients(found, expected, distances(again, expected)):
        raise CompileMismatch(
            f"The replayed step is wrong: the gradient of {wrong.name} differs by {wrong.away:.0%} "
            "from that of the step as it was written. Give --no-replay."
        )


def record_call(module: nn.Module, given: tuple[Tensor, ...], pool: Any = None) -> Any:
    """A module's call in training, for tensors of these shapes; in memory that others may have too."""
    held = tuple(value.clone() for value in given)
    # A record's gradients arrive on the stream it was recorded on, and torch waits for them.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    # Recording calls it some times before.
    with untouched(module), no_value_checks():
        try:
            # Not every weight has a part in every step (InformerConfig.mix).
            return torch.cuda.make_graphed_callables(
                module.train(), held, allow_unused_input=True, pool=pool
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise CompileMismatch(
                f"A step of this model cannot be recorded ({why}): give --no-replay."
            ) from error
