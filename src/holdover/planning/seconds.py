"""Seconds of a step: computing, the optimiser, and what of the talk nothing hides.

window    max( FLOPs / (peak x utilisation),  layers x launch seconds x passes )
batch     windows x window
Adam      28 bytes a weight that is held, at the speed of the memory
step      accumulate x batch + Adam + talk that is not hidden
"""

from dataclasses import dataclass

from .communication import Talk
from .flops import batch_flops, window_flops
from .hardware import Hardware
from .model_profile import ModelProfile
from .options import LAUNCH_SECONDS
from .run import PlannedRun

# Weight, gradient and two moments are read; weight and moments are written.
ADAM_TRAFFIC = 28


@dataclass(frozen=True)
class StepSeconds:
    computing: float
    adam: float
    talk: float
    exposed: float  # of the talk

    @property
    def step(self) -> float:
        return self.computing + self.adam + self.exposed


def peak_of(run: PlannedRun, hardware: Hardware) -> float:
    return hardware.single if run.precision == "float32" else hardware.peak


def window_seconds(
    model: ModelProfile, run: PlannedRun, hardware: Hardware, utilisation: float
) -> float:
    """Of one window in all rows of a process, forward, backward and again."""
    flops = sum(batch_flops(model, run).values()) / run.windows
    passes = 4 / 3 if run.recompute == "window" else 1.0
    launches = model.layers * LAUNCH_SECONDS * passes
    return max(flops / (peak_of(run, hardware) * utilisation), launches)


def step_seconds(
    model: ModelProfile, run: PlannedRun, hardware: Hardware, utilisation: float, talk: Talk
) -> StepSeconds:
    window = window_seconds(model, run, hardware, utilisation)
    one = window_flops(model, run.window)
    again = one.forward if run.recompute == "window" else 0.0
    # What hides the gradients' way is the backward of one window.
    hiding = window * (one.backward + again) / (one.forward + one.backward + again)
    held = model.parameters / (run.processes if run.shard else 1)
    adam = ADAM_TRAFFIC * held / hardware.memory_speed if run.optimizer else 0.0
    computing = run.accumulate * run.windows * window
    return StepSeconds(computing, adam, talk.seconds, talk.exposed(hiding))
