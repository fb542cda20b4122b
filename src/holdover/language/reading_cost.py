"""The measured cost of reading: speed, memory, and FLOPs as torch counts them."""

from dataclasses import replace
from typing import Any

import torch

from ..evaluation.cost import PeakMemory, counted_flops
from ..evaluation.scoring import first_windows, score, segments_to_score
from ..recurrent.model import RecurrentModel
from ..text.tokens import Tokens
from .eval_options import EvalOptions


def speed_of(
    model: RecurrentModel,
    tokens: Tokens,
    options: EvalOptions,
    reset_every: int | None,
    device: torch.device,
) -> dict[str, Any]:
    """Tokens per second and peak memory of a second reading, without metrics or kept states."""
    part = first_windows(tokens, options.rows, options.timed_windows, model.settings.window)
    part = replace(part, scored=None)

    def read() -> None:
        score(model, part, rows=options.rows, device=device, reset_every=reset_every)
        if device.type == "cuda":
            torch.cuda.synchronize()

    read()
    with PeakMemory(device) as memory:
        read()
    rows = len(segments_to_score(part, model.settings, reset_every))
    return {
        "tokens_per_second": (len(part) - part.documents) / memory.seconds,
        "rows_side_by_side": min(rows, options.rows),
        "peak_memory": memory.result,
    }


def sizes_of(model: RecurrentModel) -> tuple[int, int]:
    return len(model.hooks.layers), model.backbone.config.hidden_size


def counted_per_token(
    model: RecurrentModel, window: int, overlap: int, device: torch.device
) -> float:
    """Forward FLOPs of a window with a state, as torch counts them, per new token."""
    # Any token will do, but transformers warns about padding.
    token = 1 if model.backbone.config.pad_token_id == 0 else 0
    ids = torch.full((1, window), token, device=device)

    def read() -> None:
        with torch.no_grad():
            model(ids, state=state)

    state = None
    with torch.no_grad():
        state = model(ids).state
    if state is not None and state.tail is not None:
        # A window in the middle of a text: its first tokens repeat the one before.
        ids = ids[:, : window - overlap]
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    # The counter follows gradients, and fails on views of weights that need one (XLNet's query stream),
    # even if nobody asks for gradients.
    for weight in trained:
        weight.requires_grad_(False)
    try:
        with model.uncompiled():
            return counted_flops(read) / (window - overlap)
    finally:
        for weight in trained:
            weight.requires_grad_(True)
