"""One call of the model: its arguments, checked once, and the windows they become."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..config import RecurrenceConfig
from ..loss import cross_entropy_sum
from ..state import NO_TOKEN, State
from ..unrolling import Recompute, unroll
from ..windows import IGNORED, Window, shift_left
from .checks import (
    check_attention,
    check_finite,
    check_ids,
    check_labels,
    check_others,
    check_state,
    check_windows,
)
from .merge_outputs import join_spans, join_tokens, pool_sequences
from .output import RecurrentOutput
from .precompute import batching_pays, precomputed
from .step import OutputRequest, StepRules
from .text_layout import WindowedBatch, lay_out_batch


@dataclass(kw_only=True)
class Call:
    """What one call reads: everything in it belongs to the call."""

    model: Any = field(kw_only=False)
    settings: RecurrenceConfig = field(kw_only=False)
    input_ids: Tensor | None = None
    windows: Sequence[Window] | None = None
    attention_mask: Tensor | None = None
    labels: Tensor | None = None
    state: State | None = None
    token_type_ids: Tensor | None = None
    document_starts: Tensor | None = None
    start_positions: Tensor | None = None
    end_positions: Tensor | None = None
    num_items_in_batch: Tensor | int | None = None
    return_logits: bool | None = None
    output_hidden_states: bool | None = None
    others: dict[str, Any] = field(default_factory=dict)
    request: OutputRequest | None = None

    def check(self) -> None:
        """Refuse what cannot be read, before anything is computed."""
        model = self.model
        if (self.windows is None) == (self.input_ids is None):
            raise TypeError("A model reads input_ids, or windows: give one of them.")
        if not model.enabled:
            if self.state is not None:
                raise ValueError(
                    "A state was given while the recurrence is disabled, and the stock model cannot "
                    "read it: leave disable_recurrence(), or call without a state."
                )
            if self.windows is not None:
                check_windows(self)
            return
        # Arguments that are None or False ask for nothing: peft and others pass them along.
        self.others = {k: v for k, v in self.others.items() if v is not None and v is not False}
        if self.windows is not None:
            check_windows(self)
            batch, device = self.windows[0].input_ids.shape[0], self.windows[0].input_ids.device
        else:
            assert self.input_ids is not None
            check_attention(model.backbone)
            shift_labels = self.others.get("shift_labels")
            check_labels(model.task, self.input_ids, self.labels, shift_labels)
            check_others({k: v for k, v in self.others.items() if k != "shift_labels"})
            mask = None if self.attention_mask is None else self.attention_mask.bool()
            check_ids(self.input_ids, mask, model.vocabulary)
            batch, device = self.input_ids.shape[0], self.input_ids.device
        if self.state is not None:
            check_state(self.state, batch, device, model.dtype, model.owner())


def read_texts(call: Call) -> RecurrentOutput:
    """Texts of any length: laid out as windows, unrolled, joined."""
    model, settings = call.model, call.settings
    targets = _targets(call)
    texts = _lay_out(call, targets)
    is_language_model = model.task in ("causal-lm", "masked-lm")
    logits = call.return_logits
    request = call.request or OutputRequest(
        model.task,
        logits=(targets is None or not is_language_model) if logits is None else logits,
        hidden_states=bool(call.output_hidden_states),
    )
    outputs, state = unroll_windows(model, texts.windows, call.state, request, settings)
    tail = texts.last(settings.overlap)
    result = RecurrentOutput(state=replace(state, tail=tail, owner=model.owner()))
    if request.task == "question-answering":
        join_spans(result, texts, outputs, call.start_positions, call.end_positions)
    elif request.task == "sequence-classification":
        _classify(model, result, texts, outputs, call.labels)
    elif request.task == "bare":
        result.last_hidden_state = texts.join([out["last_hidden_state"] for out in outputs])
    else:
        join_tokens(result, texts, outputs, call.num_items_in_batch)
    if request.hidden_states:
        by_layer = zip(*[output["hidden_states"] for output in outputs], strict=True)
        result.hidden_states = tuple(texts.join(list(parts)) for parts in by_layer)
    return result


def read_windows(call: Call) -> RecurrentOutput:
    """The loss of windows that bring their targets, and the state after them.

    No value is read back from the device, so that nothing waits: whoever cuts windows checks ids once
    for all of them, and training looks at losses when they have arrived.
    """
    assert call.windows is not None
    model, windows = call.model, list(call.windows)
    request = OutputRequest(model.task)
    outputs, state = unroll_windows(model, windows, call.state, request, call.settings)
    total = torch.stack([output["loss"] for output in outputs]).sum()
    before = None if call.state is None else call.state.tail
    tail = tail_after(windows, before, call.settings.overlap)
    return RecurrentOutput(
        loss=total / _scored(windows, call.num_items_in_batch),
        state=replace(state, tail=tail, owner=model.owner()),
    )


def read_without_recurrence(call: Call, return_dict: bool | None) -> Any:
    """The stock model's own answer; windows are read each alone."""
    backbone = call.model.backbone
    if call.windows is not None:
        losses = []
        for window in call.windows:
            mask = None if window.mask is None else window.mask.long()
            inputs = {"attention_mask": mask, "token_type_ids": window.token_type_ids}
            given = {name: value for name, value in inputs.items() if value is not None}
            logits = backbone(window.input_ids, **given).logits
            assert window.targets is not None
            losses.append(cross_entropy_sum(logits, window.targets))
        loss = torch.stack(losses).sum() / _scored(call.windows, call.num_items_in_batch)
        return RecurrentOutput(loss=loss)
    arguments = {
        **call.others,
        "attention_mask": call.attention_mask,
        "labels": call.labels,
        "token_type_ids": call.token_type_ids,
        "start_positions": call.start_positions,
        "end_positions": call.end_positions,
        "output_hidden_states": call.output_hidden_states,
        "return_dict": return_dict,
    }
    given = {name: value for name, value in arguments.items() if value is not None}
    return backbone(call.input_ids, **given)


def unroll_windows(
    model: Any,
    windows: list[Window],
    state: State | None,
    request: OutputRequest,
    settings: RecurrenceConfig,
) -> tuple[list[dict[str, Any]], State]:
    """Outputs of all windows and the last state. A recomputed window reads the same settings again."""
    # A recomputed window runs in a backward pass: after a `with`, or, on CUDA, in another thread.
    step = partial(model.step, settings=settings, compiled=model.compiled)
    mode = settings.recompute
    rule = Recompute(
        mode,
        settings.memory_budget,
        random=any(module.training for module in model.modules()),
        parameters=tuple(model.parameters()) if mode == "auto" else (),
        step=partial(step, wanted=replace(request, fused_loss=False)),
    )
    horizon = 1 if settings.detach_state else settings.horizon
    outputs = []
    with _precomputed_where_faster(model, windows, request, settings) as ready:
        for output, reached in unroll(
            partial(step, wanted=request), ready, state, horizon=horizon, recompute=rule
        ):
            outputs.append(output)
            state = reached
    assert state is not None
    return outputs, state


@contextmanager
def _precomputed_where_faster(
    model: Any, windows: list[Window], request: OutputRequest, settings: RecurrenceConfig
) -> Iterator[list[Window]]:
    """The windows, with the state-independent layers already run where that is faster."""
    below = model.recurrence.state_free_layers()
    if model.hooks.reads_left_to_right or request.hidden_states:
        # A second stream of queries passes through those layers too; their outputs are asked for.
        below = 0
    keeps = settings.recompute == "none" or not torch.is_grad_enabled()
    choice = getattr(settings.kind, "lower_layers", "per_window")
    if below == 0 or not keeps or not batching_pays(windows, choice):
        yield windows
        return
    # Compiled for what comes again and again: windows of one shape, without padding.
    even = all(w.input_ids.shape == windows[0].input_ids.shape for w in windows)
    full = all(w.mask is None for w in windows)
    rules = StepRules.of(settings)
    if even and full and model.compiled and model._compiled.lower is not None:
        run = partial(model._compiled.run, model._compiled.lower)
    else:
        run = model._run_lower
    yield precomputed(windows, lambda window: run(window, rules))


def _targets(call: Call) -> Tensor | None:
    """[B, N] the label of each position's own output, for heads that label tokens."""
    task, shift_labels = call.model.task, call.others.get("shift_labels")
    if call.request is not None:
        return None
    if task in ("masked-lm", "token-classification"):
        return call.labels
    if task != "causal-lm" or shift_labels is not None or call.labels is None:
        return shift_labels
    labels, starts = call.labels, call.document_starts
    if call.attention_mask is not None:
        labels = labels.masked_fill(call.attention_mask == 0, IGNORED)
    return shift_left(labels, None if starts is None else starts.bool())


def _lay_out(call: Call, targets: Tensor | None) -> WindowedBatch:
    model, mask, starts = call.model, call.attention_mask, call.document_starts
    assert call.input_ids is not None
    return lay_out_batch(
        call.input_ids,
        None if mask is None else mask.bool(),
        targets,
        call.state,
        window=call.settings.window,
        overlap=call.settings.overlap,
        centred=not (model.spec.causal or model.task == "causal-lm"),
        padding=model.backbone.config.pad_token_id or 0,
        token_type_ids=call.token_type_ids,
        starts=None if starts is None else starts.bool(),
    )


def _scored(windows: Sequence[Window], count: Tensor | int | None) -> Tensor | int:
    if count is not None:
        return count
    scored = [(w.targets != IGNORED).sum() for w in windows if w.targets is not None]
    return torch.stack(scored).sum().clamp(min=1)


def tail_after(windows: list[Window], tail: Tensor | None, overlap: int) -> Tensor | None:
    """[B, overlap] last tokens that were read of each row's document, NO_TOKEN where it has fewer."""
    if overlap == 0:
        return None
    for window in windows:
        ids, mask = window.input_ids, window.mask
        if mask is None:
            last = ids[:, -overlap:]
            now = torch.nn.functional.pad(last, (overlap - last.shape[1], 0), value=NO_TOKEN)
        else:
            # Padding follows the tokens.
            place = mask.sum(1, keepdim=True) - overlap
            place = place + torch.arange(overlap, device=ids.device)
            now = ids.gather(1, place.clamp(min=0, max=ids.shape[1] - 1))
            now = now.masked_fill(place < 0, NO_TOKEN)
        if window.reads is not None:
            before = torch.full_like(now, NO_TOKEN) if tail is None else tail
            now = torch.where(window.reads[:, None], now, before)
        tail = now
    return tail


def _classify(
    model: Any,
    result: RecurrentOutput,
    texts: WindowedBatch,
    outputs: list[dict[str, Any]],
    labels: Tensor | None,
) -> None:
    """Sequence heads: the stock norm, pooler and classifier on the windows' pooled vectors."""
    vector = pool_sequences(texts, outputs)
    result.logits, result.loss = model.hooks.run_head(vector, labels)
    if result.loss is not None:
        check_finite([result.loss])
