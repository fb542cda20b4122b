"""One window: what the stock model says of it, and what is handed to the next.

* `step` takes and returns values; `_step` is the same on bare tensors, the part that is compiled.
* A window's loss is reduced here: logits of two windows never live at once, unless they are asked for.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones.heads import Task
from ..backbones.hooks import Hooks, linear_head
from ..backbones.registry import ArchitectureSpec
from ..carries.base import Carry, CarryInputs, StepTrace, expand_present
from ..config import RecurrenceConfig
from ..loss import cross_entropy_sum, linear_cross_entropy, linear_nll, nll
from ..state import State
from ..windows import Window
from .hf_compat import CompiledStep

# Where compiled attention errs: see `misread_when_compiled`.
MISREAD_ON = ("cuda",)


@dataclass(frozen=True)
class OutputRequest:
    """What a step is to return beside the loss and the state."""

    task: Task
    logits: bool = False
    hidden_states: bool = False
    # [B, T] -log p of each position's target in place of their sum; without a gradient.
    nll: bool = False
    # Compute the loss's gradient on the way, so that no logits wait for backward. For a recomputed
    # window that is work done twice: its logits live only inside its backward anyway.
    fused_loss: bool = True


class StepMixin:
    """Mixed into RecurrentModel: the recurrent model itself."""

    backbone: Any
    recurrence: Carry
    settings: RecurrenceConfig
    row: ArchitectureSpec
    task: Task
    hooks: Hooks
    _compiled: CompiledStep

    def step(
        self, window: Window, state: State | None = None, wanted: OutputRequest | None = None
    ) -> tuple[dict[str, Any], State]:
        """Read one window: what the model says of it, and what it hands to the next."""
        wanted = wanted or OutputRequest(self.task, logits=True)
        carried = None if state is None else dict(state.tensors)
        present = None if state is None else state.present
        run = self._step
        if self.settings.carry == "none":
            present = None
        if (
            self._compiled.step is not None
            and carried is not None
            and self._compiles(window, carried, present)
        ):
            run = self._compiled.step
            window, carried, present = _as_compiled(window, carried, present)
        output, tensors, now_present = run(window, carried, present, wanted)
        if self.settings.detach_state:
            tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        owner = state.owner if state is not None else {}
        tail = state.tail if state is not None else None
        return output, State(tensors, now_present, tail, owner)

    def _compiles(self, window: Window, carried: dict[str, Tensor], present: Tensor | None) -> bool:
        """Each form takes a minute to compile: only those that come again and again are."""
        if window.reads is not None or window.input_ids.shape[1] != self.settings.window:
            return False
        masked = window.mask is not None or present is not None
        counts = _key_counts(window, carried, self.recurrence.extra_positions)
        return not (masked and misread_when_compiled(window.input_ids.device, counts))

    def _step(
        self,
        window: Window,
        carried: dict[str, Tensor] | None,
        present: Tensor | None,
        wanted: OutputRequest,
    ) -> tuple[dict[str, Any], dict[str, Tensor], Tensor | None]:
        """`step` on bare tensors: the part that is compiled."""
        batch, positions = window.input_ids.shape
        tokens: int | Tensor = positions if window.mask is None else window.mask.sum(1)
        reading = self.hooks.prepared(self.recurrence.read(carried, present, batch), batch)
        trace = StepTrace(
            batch=batch,
            length=self._pooled(tokens),
            tokens=tokens,
            partial=window.lower_mix,
            carried=carried,
            present=present,
            device=window.input_ids.device,
        )
        self.hooks.open(window, reading, trace)
        try:
            self.hooks.skip.stored = window.lower
            output = self._run(window, wanted)
        finally:
            self.hooks.close()
        assert trace.finished, (
            "the model's forward went around the seams: its row names a wrong base"
        )
        written = self.recurrence.write(trace)
        now_present = None
        if window.reads is not None:
            written, now_present = _only_reading(window.reads, written, carried, present)
        return output, written, now_present

    def _pooled(self, tokens: int | Tensor) -> int | Tensor:
        """How many positions of a window are pooled."""
        if self.settings.pool_positions == "all" or self.settings.overlap == 0:
            return tokens
        left = tokens - self.settings.overlap
        return max(left, 1) if isinstance(left, int) else left.clamp(min=1)

    def _run(self, window: Window, wanted: OutputRequest) -> dict[str, Any]:
        """Run the stock model on a window and reduce what it says."""
        ids = window.input_ids
        inputs: dict[str, Any] = {"input_ids": ids}
        if window.mask is not None and self.row.causal:
            # Padding stands behind the tokens: what reads left to right never sees it. Which ids it has
            # does not matter, except that transformers warns of its own padding id without a mask.
            inputs["input_ids"] = torch.where(window.mask, ids, ids[:, :1])
        elif window.mask is not None:
            inputs["attention_mask"] = window.mask.long()
        if window.token_type_ids is not None:
            inputs["token_type_ids"] = window.token_type_ids
        if self.row.causal:
            inputs["use_cache"] = False
        if wanted.hidden_states:
            inputs["output_hidden_states"] = True
        head = linear_head(self.backbone)
        without_head = wanted.task in ("bare", "sequence-classification") or (
            wanted.task == "causal-lm" and head is not None
        )
        stock = (self.backbone.base_model if without_head else self.backbone)(**inputs)
        output: dict[str, Any] = {}
        if wanted.hidden_states:
            output["hidden_states"] = self.hooks.hidden_states(stock)
        if wanted.task == "bare":
            output["last_hidden_state"] = stock.last_hidden_state
        elif wanted.task == "sequence-classification":
            output["vector"] = self._sequence_vector(window)
        elif wanted.task == "question-answering":
            output["span_logits"] = torch.stack([stock.start_logits, stock.end_logits], -1)
        else:
            hidden = stock.last_hidden_state if without_head else self.hooks.head_input
            self._score(output, window, wanted, stock, head, hidden)
        return output

    def _score(
        self,
        output: dict[str, Any],
        window: Window,
        wanted: OutputRequest,
        stock: Any,
        head: nn.Linear | None,
        hidden: Tensor | None,
    ) -> None:
        """Logits and loss of heads that label tokens."""
        if window.targets is None and not wanted.logits:
            return
        if wanted.nll and not wanted.logits and head is not None and hidden is not None:
            assert window.targets is not None
            output["nll"] = linear_nll(hidden, head.weight, head.bias, window.targets)
            return
        if (
            window.targets is not None
            and wanted.fused_loss
            and not wanted.nll
            and head is not None
            and hidden is not None
        ):
            output["loss"] = linear_cross_entropy(hidden, head.weight, head.bias, window.targets)
            if not wanted.logits:
                return
        logits = stock.get("logits")
        if logits is None:
            assert head is not None and hidden is not None
            logits = head(hidden)
        if wanted.logits:
            output["logits"] = logits
        if wanted.nll:
            assert window.targets is not None
            output["nll"] = nll(logits, window.targets)
        elif window.targets is not None and "loss" not in output:
            output["loss"] = cross_entropy_sum(logits, window.targets)

    def _sequence_vector(self, window: Window) -> Tensor:
        """[B, k] last layer's output at the position that stands for the sequence."""
        hidden = self.hooks.last_layer
        assert hidden is not None
        offset = self.recurrence.extra_positions // 2
        kind = getattr(self.backbone.config, "classifier_pooling", None)
        length = window.input_ids.shape[1]
        hidden = hidden[:, offset : offset + length]
        if kind == "mean":
            if window.mask is None:
                return hidden.mean(1)
            weight = window.mask.to(hidden.dtype)[..., None]
            return (hidden * weight).sum(1) / weight.sum(1)
        if self.row.sequence_vector == "first":
            return hidden[:, 0]
        if window.mask is None:
            return hidden[:, -1]
        last = window.mask.sum(1) - 1
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]

    def _run_lower(self, window: Window) -> tuple[Tensor, Tensor | None]:
        """[B, T, k] input of the insert layer, and what the layers below add to the summary."""
        batch, positions = window.input_ids.shape
        tokens: int | Tensor = positions if window.mask is None else window.mask.sum(1)
        trace = StepTrace(batch=batch, length=self._pooled(tokens), tokens=tokens)
        self.hooks.open(window, CarryInputs(), trace)
        try:
            self._run(window, OutputRequest("bare"))
            reached = self.hooks.skip.reached
        finally:
            self.hooks.close()
        assert reached is not None
        return reached, trace.partial


def misread_when_compiled(device: torch.device, counts: set[int]) -> bool:
    """Whether attention with a mask errs in compiled code, with so many keys in some layer.

    Fused kernels take masks whose rows begin at multiples of 8; torch pads others, and what it compiles
    for a GPU then reads something else. Measured on an H200 with torch 2.11: 300 keys wrong, and
    otherwise wrong every time; 304 and 320 right to the last bit; without a mask 300 right too.
    """
    return device.type in MISREAD_ON and any(count % 8 for count in counts)


def _key_counts(window: Window, carried: dict[str, Tensor], extra: int) -> set[int]:
    """How many keys the layers have: tokens and what is put around them, or in some what is carried."""
    tokens = window.input_ids.shape[1] + extra
    if extra:
        return {tokens}
    # [B, m, k]: summaries, or older inputs of a layer; the states of blocks are keys of their own.
    older = (tensor.shape[1] for tensor in carried.values() if tensor.ndim == 3)
    return {tokens, *(tokens + count for count in older)}


def _as_compiled(
    window: Window, carried: dict[str, Tensor], present: Tensor | None
) -> tuple[Window, dict[str, Tensor], Tensor | None]:
    """A window and its past in one of two forms: nothing missing, or with both masks."""
    mask = window.mask
    if mask is not None or present is not None:
        ids = window.input_ids
        mask = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        present = torch.ones_like(ids[:, 0], dtype=torch.bool) if present is None else present
    if torch.is_grad_enabled():
        # As in the windows that follow: whether a past was cut off is no other form.
        carried = {
            name: tensor.detach().requires_grad_()
            if tensor.is_floating_point() and not tensor.requires_grad
            else tensor
            for name, tensor in carried.items()
        }
    window = replace(
        window,
        # Copies, so that their strides do not tell how long the text was.
        input_ids=_contiguous(window.input_ids),
        targets=_contiguous(window.targets),
        token_type_ids=_contiguous(window.token_type_ids),
        mask=_contiguous(mask),
    )
    return window, carried, present


def _contiguous(ids: Any) -> Any:
    return None if ids is None else ids.clone(memory_format=torch.contiguous_format)


def _only_reading(
    reads: Tensor,
    written: dict[str, Tensor],
    carried: dict[str, Tensor] | None,
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
