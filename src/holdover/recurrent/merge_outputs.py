"""What the windows' outputs become for the whole text, head by head."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..windows import IGNORED
from .checks import check_finite
from .output import RecurrentOutput
from .text_layout import WindowedBatch


def join_tokens(
    result: RecurrentOutput,
    texts: WindowedBatch,
    outputs: list[dict[str, Any]],
    num_items_in_batch: Tensor | int | None,
) -> None:
    """Token heads: logits side by side; the loss is one sum, divided once."""
    if "logits" in outputs[0]:
        result.logits = texts.join([output["logits"] for output in outputs])
    if "loss" not in outputs[0]:
        return
    losses = [output["loss"] for output in outputs]
    check_finite(losses)
    count: Tensor | int
    if num_items_in_batch is not None:
        count = num_items_in_batch
    else:
        scored = [(w.targets != IGNORED).sum() for w in texts.windows if w.targets is not None]
        count = torch.stack(scored).sum().clamp(min=1)
    total = torch.stack(losses).sum()
    result.loss = total / (count.to(total.device) if isinstance(count, Tensor) else count)


def join_spans(
    result: RecurrentOutput,
    texts: WindowedBatch,
    outputs: list[dict[str, Any]],
    start_positions: Tensor | None,
    end_positions: Tensor | None,
) -> None:
    """Question answering: one distribution over all positions of all windows."""
    logits = texts.join([output["span_logits"] for output in outputs])
    tokens = texts.tokens()
    if tokens is not None:
        logits = logits.masked_fill(~tokens[..., None], torch.finfo(logits.dtype).min)
    result.start_logits, result.end_logits = logits.unbind(-1)
    if start_positions is None or end_positions is None:
        return
    losses = []
    for scores, places in (
        (result.start_logits, start_positions),
        (result.end_logits, end_positions),
    ):
        columns = scores.shape[1]
        # As transformers has it: an answer beyond the text is ignored.
        wanted = places.reshape(-1).clamp(0, columns)
        losses.append(F.cross_entropy(scores, wanted, ignore_index=columns))
    check_finite(losses)
    result.loss = torch.stack(losses).mean()


def pool_sequences(texts: WindowedBatch, outputs: list[dict[str, Any]]) -> Tensor:
    """[B, k] maximum over a row's windows of the vectors that stand for them."""
    vectors = []
    for output, window in zip(outputs, texts.windows, strict=True):
        vector = output["vector"]
        if window.reads is not None:
            vector = vector.masked_fill(~window.reads[:, None], float("-inf"))
        vectors.append(vector)
    return torch.stack(vectors).amax(0)
