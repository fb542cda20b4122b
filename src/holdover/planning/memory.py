"""Bytes on one GPU at the peak of a step, by part; P weights of w bytes, N processes.

    copies   w P weights, w P gradients, w P buckets that DDP sends (N > 1), 8 P Adam
    shards   w P (1 + 1/N) weights, w P (1 + 1/N) gradients, 8 P / N Adam, and one layer's exchange

In shards, gradients are whole up to the last window that is gone back through: a weight's gradient is
complete when all of its uses are, and only then is it dealt out. What is kept of activations was seen
(attach/outline.py); bytes a logit are counted in loss.py, line by line.
"""

from ..loss import SLICE
from .model_profile import Kept, ModelProfile
from .run import PlannedRun

ADAM_BYTES = 8
# Bytes a logit at the worst moment: in slices with their gradient (loss.py, _accumulate), and as a whole
# window that goes through torch's own cross-entropy. A compiler fuses all but logits and gradient.
SLICED_BYTES = 17
WHOLE_BYTES = {2: 14, 4: 12}


def memory(model: ModelProfile, kept: Kept, run: PlannedRun) -> dict[str, float]:
    """By part, in bytes."""
    weights = model.parameters * run.weight_bytes
    part = weights / run.processes if run.shard else 0.0
    several = run.processes > 1
    exchange = 0.0
    if several:
        exchange = 2 * model.largest_group * run.weight_bytes if run.shard else weights
    share = run.processes if run.shard else 1
    return {
        "weights": weights + part,
        "gradients": weights + part,
        "exchange": float(exchange),
        "Adam": ADAM_BYTES * model.parameters / share if run.optimizer else 0.0,
        "bf16 copies": 2.0 * _cast_weights(model) if run.precision == "autocast" else 0.0,
        "activations": _activations(model, kept, run),
        "logits": float(_logits(model, run)),
        "state": _state(model, run),
    }


def _cast_weights(model: ModelProfile) -> int:
    return model.layer_products + model.head_products + model.map_products


def _activations(model: ModelProfile, kept: Kept, run: PlannedRun) -> float:
    positions = run.rows * (run.window + model.extra_positions)
    each = kept.compiled if run.compiled else kept.eager
    layers = run.kept_windows * positions * each
    if run.recompute == "window" or run.stock:
        return layers
    # The loss of a kept window has its gradients computed on the way: of its input, of the head.
    of_input = run.rows * run.window * model.hidden * run.product_bytes
    return layers + run.windows * (of_input + model.head_products * run.product_bytes)


def _logits(model: ModelProfile, run: PlannedRun) -> int:
    positions = run.rows * run.window
    whole = run.recompute == "window" or run.stock
    if not whole:
        positions = min(positions, SLICE)
    if run.compiled:
        return positions * model.vocabulary * 2 * run.product_bytes
    each = WHOLE_BYTES[run.product_bytes] if whole else SLICED_BYTES
    return positions * model.vocabulary * each


def _state(model: ModelProfile, run: PlannedRun) -> float:
    slots = max(model.rows_read, model.extra_positions // 2)
    return float(run.rows * run.windows * slots * model.hidden * run.weight_bytes)
