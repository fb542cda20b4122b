"""FLOPs of one window of one row, by formula; a multiplication and an addition are two.

With P weights of products in the layers, n = T + e positions (e: memory tokens), s score width (heads x
width of a head), h weights of the head, m keys that are read beside the window in i layers, f weights of
the map between windows, a weights of one layer's attention:

    layers      2 P n                     every position through every product
    attention   4 s (L n^2 + i ((n + m)^2 - n^2))
    head        2 h T
    recurrence  2 f m + 2 i a m           the map, and the rows' way through the insert layers

Places that a causal mask hides are counted, as torch's counter does. Backward takes twice a product (the
gradients of both factors), of attention 2.5 times (it computes its scores again). A window that is
recomputed runs its forward twice.
"""

from dataclasses import dataclass

from .model_profile import ModelProfile
from .run import PlannedRun


@dataclass(frozen=True)
class WindowFlops:
    """Of the forward of one window in one row."""

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
    read = model.rows_read
    more_places = model.insert_layers * ((positions + read) ** 2 - positions**2)
    return WindowFlops(
        layers=2 * model.layer_products * positions,
        attention=4 * model.score_width * (model.layers * positions**2 + more_places),
        head=2 * model.head_products * window,
        recurrence=2 * model.map_products * max(read, model.extra_positions // 2)
        + 2 * model.insert_layers * model.attention_products * read,
    )


def batch_flops(model: ModelProfile, run: PlannedRun) -> dict[str, float]:
    """Of one batch in one process, by part."""
    one = window_flops(model, run.window)
    times = run.rows * run.windows
    return {
        "forward": times * one.forward,
        "backward": times * one.backward,
        "recomputed": times * one.forward if run.recompute == "window" else 0.0,
    }


def flops_a_token(model: ModelProfile, run: PlannedRun) -> dict[str, float]:
    """Of training, for each new token: tokens that windows read again are paid for by those."""
    return {part: flops / run.tokens_a_batch for part, flops in batch_flops(model, run).items()}
