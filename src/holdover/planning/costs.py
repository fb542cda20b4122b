"""What one training step costs, by formula: FLOPs, memory, communication, seconds.

FLOPs of one window of one row (a multiplication and an addition are two). With P weights in the matrix
products of the layers, n = T + e positions (e: memory tokens), s score width (heads x head width), h
weights of the head, m extra keys that i layers read, f weights of the map between windows, a weights of
one layer's attention:

    layers      2 P n                     every position through every product
    attention   4 s (L n^2 + i ((n + m)^2 - n^2))
    head        2 h T
    recurrence  2 f m + 2 i a m           the map, and the keys and values of the m rows

Positions that a causal mask hides count too, as in torch's counter. Backward costs twice the products
(the gradients of both factors) and 2.5 times the attention (it computes its scores again). A recomputed
window runs its forward twice.

Bytes on one GPU at the peak of a step, with P weights of w bytes and N processes:

    copies   w P weights, w P gradients, w P buckets that DDP sends (N > 1), 8 P Adam
    shards   w P (1 + 1/N) weights, w P (1 + 1/N) gradients, 8 P / N Adam, and one layer's exchange

With shards, a gradient stays whole until all uses of its weight have added to it, that is until the
backward pass reaches the first window; only then is it split. Activations come from a trial run
(model_profile.py); loss.py determines the bytes per logit.

Bytes that each process sends for one step:

    all-reduce      2 (N - 1) / N x G     copies: gradients, once per step
    all-gather        (N - 1) / N x W     shards: weights, once per step
    reduce-scatter    (N - 1) / N x G     shards: gradients, once per batch

A ring visits all GPUs of a node before it leaves the node. There are as many rings as network cards, so
the slower of NVLink and all network cards of a node together sets the speed. Messages count as large:
latency is ignored.

Seconds of a step:

    window    max( FLOPs / (peak x utilisation),  layers x launch seconds x passes )
    batch     windows x window
    Adam      28 bytes per weight on this GPU, at the speed of the memory
    step      accumulate x batch + Adam + communication that nothing hides
"""

from dataclasses import dataclass

from ..loss import SLICE
from .hardware import Hardware
from .model_profile import ActivationBytes, ModelProfile
from .options import LAUNCH_SECONDS, PlannedRun

ADAM_BYTES = 8
# Weight, gradient and two moments are read; weight and moments are written.
ADAM_TRAFFIC = 28
# Bytes per logit at the peak: computed in slices together with their gradient (loss.py, _accumulate),
# and for a whole window in torch's own cross-entropy. Compiled code keeps only logits and gradient.
SLICED_BYTES = 17
WHOLE_BYTES = {2: 14, 4: 12}


@dataclass(frozen=True)
class WindowFlops:
    """The forward pass of one window in one row, by part."""

    layers: float
    attention: float
    head: float
    recurrence: float

    @property
    def forward(self) -> float:
        return self.layers + self.attention + self.head + self.recurrence

    @property
    def backward(self) -> float:
        return 2 * (self.layers + self.head + self.recurrence) + 2.5 * self.attention


def window_flops(model: ModelProfile, window: int) -> WindowFlops:
    positions = window + model.extra_positions
    rows = model.rows_read
    extra_scores = model.insert_layers * ((positions + rows) ** 2 - positions**2)
    return WindowFlops(
        layers=2 * model.layer_products * positions,
        attention=4 * model.score_width * (model.layers * positions**2 + extra_scores),
        head=2 * model.head_products * window,
        recurrence=2 * model.map_products * max(rows, model.extra_positions // 2)
        + 2 * model.insert_layers * model.attention_products * rows,
    )


def batch_flops(model: ModelProfile, run: PlannedRun) -> dict[str, float]:
    """One batch in one process, by part."""
    one = window_flops(model, run.window)
    times = run.rows * run.windows
    return {
        "forward": times * one.forward,
        "backward": times * one.backward,
        "recomputed": times * one.forward if run.recompute == "window" else 0.0,
    }


def flops_a_token(model: ModelProfile, run: PlannedRun) -> dict[str, float]:
    """Training FLOPs per new token, by part: new tokens also pay for those that an overlap repeats."""
    return {part: flops / run.tokens_a_batch for part, flops in batch_flops(model, run).items()}


def memory(model: ModelProfile, activations: ActivationBytes, run: PlannedRun) -> dict[str, float]:
    """Bytes on one GPU, by part."""
    weights = model.parameters * run.weight_bytes
    own_shard = weights / run.processes if run.shard else 0.0
    exchange = 0.0
    if run.processes > 1:
        exchange = 2 * model.largest_group * run.weight_bytes if run.shard else weights
    adam = ADAM_BYTES * model.parameters / (run.processes if run.shard else 1)
    return {
        "weights": weights + own_shard,
        "gradients": weights + own_shard,
        "exchange": float(exchange),
        "Adam": adam if run.optimizer else 0.0,
        "bf16 copies": 2.0 * _cast_weights(model) if run.precision == "autocast" else 0.0,
        "activations": _activations(model, activations, run),
        "logits": float(_logits(model, run)),
        "state": _state(model, run),
    }


def _cast_weights(model: ModelProfile) -> int:
    return model.layer_products + model.head_products + model.map_products


def _activations(model: ModelProfile, activations: ActivationBytes, run: PlannedRun) -> float:
    positions = run.rows * (run.window + model.extra_positions)
    per_position = activations.compiled if run.compiled else activations.eager
    layers = run.kept_windows * positions * per_position
    if run.recompute == "window" or run.stock:
        return layers
    # The fused loss computes its gradients in the forward pass and keeps them for every window: one for
    # its input, one for the head.
    input_gradient = run.rows * run.window * model.hidden * run.product_bytes
    return layers + run.windows * (input_gradient + model.head_products * run.product_bytes)


def _logits(model: ModelProfile, run: PlannedRun) -> int:
    positions = run.rows * run.window
    whole = run.recompute == "window" or run.stock
    if not whole:
        positions = min(positions, SLICE)
    if run.compiled:
        return positions * model.vocabulary * 2 * run.product_bytes
    per_logit = WHOLE_BYTES[run.product_bytes] if whole else SLICED_BYTES
    return positions * model.vocabulary * per_logit


def _state(model: ModelProfile, run: PlannedRun) -> float:
    slots = max(model.rows_read, model.extra_positions // 2)
    return float(run.rows * run.windows * slots * model.hidden * run.weight_bytes)


@dataclass(frozen=True)
class Communication:
    """Bytes that one process sends for one step."""

    weights: float  # before the step begins
    last_gradients: float  # after the last batch of the step
    earlier_gradients: float  # after the batches before it
    speed: float  # bytes per second

    @property
    def sent(self) -> float:
        return self.weights + self.last_gradients + self.earlier_gradients

    @property
    def seconds(self) -> float:
        return self.sent / self.speed if self.sent else 0.0

    def exposed(self, hiding: float) -> float:
        """Seconds that computation does not hide.

        Gradients become complete during the backward of the first window, which comes last. Only this
        backward, `hiding` seconds long, runs while they are sent.
        """
        if not self.sent:
            return 0.0
        last = max(0.0, self.last_gradients / self.speed - hiding)
        return (self.weights + self.earlier_gradients) / self.speed + last


def communication(
    model: ModelProfile, run: PlannedRun, hardware: Hardware, link_use: float
) -> Communication:
    return communication_at(model, run, ring_speed(run, hardware) * link_use)


def communication_at(model: ModelProfile, run: PlannedRun, speed: float) -> Communication:
    """Over links of known speed, in bytes per second."""
    size = model.parameters * run.weight_bytes
    others = (run.processes - 1) / run.processes
    if not run.shard:
        return Communication(0.0, 2 * others * size, 0.0, speed)
    once = others * size
    return Communication(once, once, (run.accumulate - 1) * once, speed)


def ring_speed(run: PlannedRun, hardware: Hardware) -> float:
    """Bytes per second of a ring through all processes."""
    if run.processes <= run.processes_a_node:
        return hardware.inside
    return min(hardware.inside, run.processes_a_node * hardware.between)


@dataclass(frozen=True)
class StepSeconds:
    computing: float
    adam: float
    communication: float  # hidden or not
    exposed: float  # communication that nothing hides

    @property
    def step(self) -> float:
        return self.computing + self.adam + self.exposed


def peak_of(run: PlannedRun, hardware: Hardware) -> float:
    return hardware.single if run.precision == "float32" else hardware.peak


def window_seconds(
    model: ModelProfile, run: PlannedRun, hardware: Hardware, utilisation: float
) -> float:
    """One window in all rows of a process: forward, backward and recomputation."""
    flops = sum(batch_flops(model, run).values()) / run.windows
    passes = 4 / 3 if run.recompute == "window" else 1.0
    launches = model.layers * LAUNCH_SECONDS * passes
    return max(flops / (peak_of(run, hardware) * utilisation), launches)


def step_seconds(
    model: ModelProfile,
    run: PlannedRun,
    hardware: Hardware,
    utilisation: float,
    sent: Communication,
) -> StepSeconds:
    window = window_seconds(model, run, hardware, utilisation)
    one = window_flops(model, run.window)
    again = one.forward if run.recompute == "window" else 0.0
    # The backward of one window hides the sending of gradients.
    hiding = window * (one.backward + again) / (one.forward + one.backward + again)
    own_weights = model.parameters / (run.processes if run.shard else 1)
    adam = ADAM_TRAFFIC * own_weights / hardware.memory_speed if run.optimizer else 0.0
    computing = run.accumulate * run.windows * window
    return StepSeconds(computing, adam, sent.seconds, sent.exposed(hiding))
