"""Steps recorded once and replayed: a CUDA graph of forward and backward.

A step of a small model is hundreds of small kernels. A GPU runs them in a few milliseconds; Python
takes several times as long to launch them one by one. A replay runs the same kernels on the same memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones.cuda_graphs import no_value_checks
from ..evaluation.cost import uncounted_memory
from .compile_checks import CompileMismatch, distances, gradients_of, untouched, wrong_gradients


def check_replay(options: Any, device: torch.device, processes: int) -> None:
    """Refuse settings with which a step cannot be recorded.

    Gradients of several batches would be summed in memory that a replay overwrites. Gradients of
    several processes are summed by hooks, which a replay does not call. Recomputing a window reads the
    state of the random numbers, which cannot be read while recording.
    """
    for flag, value, needed in (
        ("device", device.type, "cuda"),
        ("accumulate", options.accumulate, 1),
        ("processes", processes, 1),
        ("recurrence.recompute", options.recurrence.recompute, "none"),
    ):
        if options.replay and value != needed:
            raise ValueError(
                f"--replay does not work with --{flag} {value}: give --{flag} {needed}, or leave "
                "--replay out."
            )


def check_replayed(
    model: Any, replayed: Callable[[], Tensor], written: Callable[[], Tensor]
) -> None:
    """Compare the gradients of a replayed loss with those of the loss as written.

    Some kernels add in the order in which threads arrive. So two runs of the loss as written differ
    too, and a difference of that size counts as rounding.
    """
    with untouched(model), uncounted_memory():
        got, expected, again = (
            gradients_of(model.train(), loss) for loss in (replayed, written, written)
        )
    for wrong in wrong_gradients(got, expected, distances(again, expected)):
        raise CompileMismatch(
            f"The replayed step is wrong: the gradient of {wrong.name} differs by {wrong.away:.0%} "
            "from that of the step as written. Give --no-replay."
        )


def record_call(module: nn.Module, given: tuple[Tensor, ...], pool: Any = None) -> Any:
    """Record a module's training call for tensors of these shapes; `pool` is memory to share with
    other records."""
    inputs = tuple(value.clone() for value in given)
    # A record's gradients arrive on the stream of the recording, and torch waits for them.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    # Recording calls the module a few times first.
    with untouched(module), no_value_checks():
        try:
            # Not every weight takes part in every step (InformerConfig.mix).
            return torch.cuda.make_graphed_callables(
                module.train(), inputs, allow_unused_input=True, pool=pool
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise CompileMismatch(
                f"A step of this model cannot be recorded ({reason}): give --no-replay."
            ) from error
