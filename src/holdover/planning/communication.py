"""What processes send each other for one step: bytes of one process, and seconds.

    all-reduce      2 (N - 1) / N x G     copies: gradients, once a step
    all-gather        (N - 1) / N x W     shards: weights, once a step
    reduce-scatter    (N - 1) / N x G     shards: gradients, once a batch

A ring goes through all GPUs of a node before it leaves it, and as many rings as there are network cards
share the work: so the slower counts of NVLink and all cards of a node together. Messages are taken to be
large: no latencies.
"""

from dataclasses import dataclass

from .hardware import Hardware
from .model_profile import ModelProfile
from .run import PlannedRun


@dataclass(frozen=True)
class Talk:
    """Of one process and one step."""

    before: float  # bytes that have to be here before a step begins
    behind: float  # bytes of gradients, for the last batch of a step
    between_batches: float  # bytes of gradients of the batches before it
    speed: float  # bytes a second

    @property
    def sent(self) -> float:
        return self.before + self.behind + self.between_batches

    @property
    def seconds(self) -> float:
        return self.sent / self.speed if self.sent else 0.0

    def exposed(self, hiding: float) -> float:
        """Seconds that computing does not hide. A weight's gradient is complete only in the backward of
        the first window, the last to come: `hiding` seconds, one window's backward."""
        if not self.sent:
            return 0.0
        shown = max(0.0, self.behind / self.speed - hiding)
        return (self.before + self.between_batches) / self.speed + shown


def talk(model: ModelProfile, run: PlannedRun, hardware: Hardware, link_use: float) -> Talk:
    return talk_at(model, run, ring_speed(run, hardware) * link_use)


def talk_at(model: ModelProfile, run: PlannedRun, speed: float) -> Talk:
    """With links that are known to carry so many bytes a second."""
    size = model.parameters * run.weight_bytes
    others = (run.processes - 1) / run.processes
    if not run.shard:
        return Talk(0.0, 2 * others * size, 0.0, speed)
    once = others * size
    return Talk(once, once, (run.accumulate - 1) * once, speed)


def ring_speed(run: PlannedRun, hardware: Hardware) -> float:
    """Bytes a second of a ring through all processes."""
    if run.processes <= run.processes_a_node:
        return hardware.inside
    return min(hardware.inside, run.processes_a_node * hardware.between)
