"""One window: what the stock model computes from it, and the state it hands to the next.

* `take_step` takes and returns values; `run_window` is the same on bare tensors, the part that is
  compiled.
* A window's loss is reduced here: logits of two windows never exist at once, unless they are asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones.cache_inputs import cache_arguments, cache_with, carried_places, window_keys_values
from ..backbones.heads import Task
from ..backbones.hooks import linear_head
from ..backbones.window_call import WindowCall
from ..carries.base import CarryInputs, StepTrace, expand_present
from ..config import RecurrenceConfig
from ..loss import cross_entropy_sum, linear_cross_entropy, linear_nll, nll
from ..state import State
from ..windows import Window
from .compile import in_compiled_form, key_counts, misread_when_compiled


@dataclass(frozen=True)
class OutputRequest:
    """What a step returns in addition to the loss and the state."""

    task: Task
    logits: bool = False
    hidden_states: bool = False
    # [B, T] -log p of each position's target in place of their sum; without a gradient.
    nll: bool = False
    # Compute the loss's gradient on the way, so that no logits wait for backward. For a recomputed
    # window that is work done twice: its logits live only inside its backward anyway.
    fused_loss: bool = True


@dataclass(frozen=True)
class StepRules:
    """The settings that one step reads: they belong to the call, not to the model."""

    window: int
    overlap: int
    kind: Any  # settings of the kind of state

    @classmethod
    def of(cls, settings: RecurrenceConfig) -> "StepRules":
        return cls(settings.window, settings.overlap, settings.kind)

    def trace(
        self, window: Window, carried: Mapping[str, Tensor] | None, present: Tensor | None
    ) -> StepTrace:
        batch, positions = window.input_ids.shape
        return StepTrace(
            batch=batch,
            tokens=positions if window.mask is None else window.mask.sum(1),
            window=self.window,
            overlap=self.overlap,
            settings=self.kind,
            carried=carried,
            present=present,
            device=window.input_ids.device,
            partial=window.lower_mix,
        )


def take_step(
    model: Any,
    window: Window,
    state: State | None,
    request: OutputRequest,
    settings: RecurrenceConfig,
    compiled: bool,
) -> tuple[dict[str, Any], State]:
    carried = None if state is None else dict(state.tensors)
    present = None if state is None or not model.recurrence.carries_state else state.present
    rules = StepRules.of(settings)
    if compiled and carried is not None and _compiles(model, window, carried, present, settings):
        arguments = in_compiled_form(window, carried, present)
        output, tensors, now_present = model._compiled.run(
            model._compiled.step, *arguments, request, rules
        )
    else:
        output, tensors, now_present = model._step(window, carried, present, request, rules)
    if settings.detach_state:
        tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    owner = state.owner if state is not None else {}
    tail = state.tail if state is not None else None
    return output, State(tensors, now_present, tail, owner)


def _compiles(
    model: Any,
    window: Window,
    carried: Mapping[str, Tensor],
    present: Tensor | None,
    settings: RecurrenceConfig,
) -> bool:
    """Each form takes a minute to compile: only forms that come again and again are compiled."""
    if window.reads is not None or window.input_ids.shape[1] != settings.window:
        return False
    masked = window.mask is not None or present is not None
    counts = key_counts(window, carried, model.recurrence.extra_positions)
    return not (masked and misread_when_compiled(window.input_ids.device, counts))


def run_window(
    model: Any,
    window: Window,
    carried: Mapping[str, Tensor] | None,
    present: Tensor | None,
    request: OutputRequest,
    rules: StepRules,
) -> tuple[dict[str, Any], dict[str, Tensor], Tensor | None]:
    """A step on bare tensors: the part that is compiled."""
    carry, hooks = model.recurrence, model.hooks
    trace = rules.trace(window, carried, present)
    call = WindowCall(window, hooks.prepared(carry.read(trace), trace.batch), trace)
    if window.lower is not None:
        call.skipped = (0, carry.state_free_layers())
        call.skip_output = window.lower
    token = hooks.open(call)
    try:
        output = _run_model(model, call, request)
    finally:
        hooks.close(token)
    call.check_skipped()
    assert call.finished, (
        "the model's forward went around the hooks: its ArchitectureSpec names a wrong base"
    )
    written = carry.write(trace)
    now_present = None
    if window.reads is not None:
        written, now_present = _only_reading(window.reads, written, carried, present)
    return output, written, now_present


def run_lower_layers(
    model: Any, window: Window, rules: StepRules
) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """[B, T, k] input of the first layer that the state enters, and what the layers below it add to
    the state."""
    trace = rules.trace(window, None, None)
    call = WindowCall(window, CarryInputs(), trace)
    call.skipped = (model.recurrence.state_free_layers(), len(model.hooks.layers))
    token = model.hooks.open(call)
    try:
        _run_model(model, call, OutputRequest("bare"))
    finally:
        model.hooks.close(token)
    call.check_skipped()
    assert call.skip_input is not None
    return call.skip_input, trace.partial


def _run_model(model: Any, call: WindowCall, request: OutputRequest) -> dict[str, Any]:
    """Run the stock model on a window and reduce its output."""
    window, ids = call.window, call.window.input_ids
    inputs: dict[str, Any] = {"input_ids": ids}
    if window.mask is not None and model.spec.causal:
        # Padding follows the tokens: a model that reads left to right never sees it. Its ids do not
        # matter, except that transformers warns of its own padding id without a mask.
        inputs["input_ids"] = torch.where(window.mask, ids, ids[:, :1])
    elif window.mask is not None:
        inputs["attention_mask"] = window.mask.long()
    if window.token_type_ids is not None:
        inputs["token_type_ids"] = window.token_type_ids
    if model.recurrence.uses_cache:
        cache = cache_with(call.inputs)
        inputs |= cache_arguments(call.inputs, ids)
        inputs |= {"past_key_values": cache, "use_cache": True}
    elif model.spec.causal:
        inputs["use_cache"] = False
    if request.hidden_states:
        inputs["output_hidden_states"] = True
    head = linear_head(model.backbone)
    without_head = request.task in ("bare", "sequence-classification") or (
        request.task == "causal-lm" and head is not None
    )
    stock = (model.backbone.base_model if without_head else model.backbone)(**inputs)
    if model.recurrence.uses_cache:
        places = carried_places(call.inputs)
        call.trace.keys_values = window_keys_values(inputs["past_key_values"], places)
    output: dict[str, Any] = {}
    if request.hidden_states:
        output["hidden_states"] = model.hooks.hidden_states(stock)
    if request.task == "bare":
        output["last_hidden_state"] = stock.last_hidden_state
    elif request.task == "sequence-classification":
        output["vector"] = _sequence_vector(model, call)
    elif request.task == "question-answering":
        output["span_logits"] = torch.stack([stock.start_logits, stock.end_logits], -1)
    else:
        hidden = stock.last_hidden_state if without_head else call.head_input
        _score(output, window, request, stock, head, hidden)
    return output


def _score(
    output: dict[str, Any],
    window: Window,
    request: OutputRequest,
    stock: Any,
    head: nn.Linear | None,
    hidden: Tensor | None,
) -> None:
    """Logits and loss of heads that label tokens."""
    targets = window.targets
    if targets is None and not request.logits:
        return
    if head is not None and hidden is not None:
        if request.nll and not request.logits:
            assert targets is not None
            output["nll"] = linear_nll(hidden, head.weight, head.bias, targets)
            return
        if targets is not None and request.fused_loss and not request.nll:
            output["loss"] = linear_cross_entropy(hidden, head.weight, head.bias, targets)
            if not request.logits:
                return
    logits = stock.get("logits")
    if logits is None:
        assert head is not None and hidden is not None
        logits = head(hidden)
    if request.logits:
        output["logits"] = logits
    if request.nll:
        assert targets is not None
        output["nll"] = nll(logits, targets)
    elif targets is not None and "loss" not in output:
        output["loss"] = cross_entropy_sum(logits, targets)


def _sequence_vector(model: Any, call: WindowCall) -> Tensor:
    """[B, k] last layer's output at the position that stands for the sequence."""
    hidden, window = call.last_layer, call.window
    assert hidden is not None
    offset = model.recurrence.extra_positions // 2
    kind = getattr(model.backbone.config, "classifier_pooling", None)
    length = window.input_ids.shape[1]
    hidden = hidden[:, offset : offset + length]
    if kind == "mean":
        if window.mask is None:
            return hidden.mean(1)
        weight = window.mask.to(hidden.dtype)[..., None]
        return (hidden * weight).sum(1) / weight.sum(1)
    if model.spec.sequence_vector == "first":
        return hidden[:, 0]
    if window.mask is None:
        return hidden[:, -1]
    last = window.mask.sum(1) - 1
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]


def _only_reading(
    reads: Tensor,
    written: dict[str, Tensor],
    carried: Mapping[str, Tensor] | None,
    present: Tensor | None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Rows that read nothing in this window keep the state they had."""
    kept = {}
    for name, tensor in written.items():
        before = torch.zeros_like(tensor) if carried is None else carried[name]
        kept[name] = torch.where(expand_present(reads, tensor), tensor, before)
    if carried is None:
        return kept, reads
    return kept, torch.ones_like(reads) if present is None else reads | present
